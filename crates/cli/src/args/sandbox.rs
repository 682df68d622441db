//! Arguments of `sandbox`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{
    duration,
    exec::{self, Copy, Exec, RunCode},
};
use crate::limits::{HOLD_SECONDS_DEFAULT, WAIT_SECONDS_DEFAULT};

/// Statuses of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Status {
    /// Being made.
    Starting,
    /// Its runtime runs.
    Running,
    /// Its runtime was given back; the disk and the journals are kept.
    Paused,
    /// Being deleted.
    Terminating,
    /// Its runtime could not be started.
    Failed,
}

impl Status {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Terminating => "terminating",
            Self::Failed => "failed",
        }
    }
}

/// How a sandbox is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// It reaches itself.
    None,
    /// It has the host's network.
    Host,
    /// It has an address of its own, and rules.
    Bridge,
}

impl Network {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
            Self::Bridge => "bridge",
        }
    }
}

/// What a bridge does with what no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Egress {
    /// Let it out.
    Allow,
    /// Refuse it.
    Deny,
}

impl Egress {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// What `create` and `update` can set.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub struct SandboxConfig {
    /// Pause it this long after its last refresh.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub ttl: Option<u64>,
    /// Delete it this long after it was made, or after this was set; no refresh puts it off.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub hard_ttl: Option<u64>,
    /// Whether a call to a paused sandbox resumes it.
    #[arg(long, value_name = "BOOL")]
    pub auto_resume: Option<bool>,
    /// Memory limit, as in 512Mi.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// CPU limit in cores, as in 0.5.
    #[arg(long, value_name = "CORES")]
    pub cpu: Option<String>,
    /// Most processes.
    #[arg(long, value_name = "COUNT")]
    pub pids: Option<u32>,
    /// How it is connected [default: bridge where the host can, else none].
    #[arg(long, value_enum, value_name = "MODE")]
    pub network: Option<Network>,
    /// What a bridge does with what no `--allow` names [default: allow].
    #[arg(long, value_enum, value_name = "VERDICT")]
    pub egress: Option<Egress>,
    /// Addresses that a bridge reaches, with ports or without: 192.0.2.0/24:443,8000-8999. May be
    /// repeated.
    #[arg(long, value_name = "CIDR[:PORTS]")]
    pub allow: Vec<String>,
    /// Whom sessions run as: uid, uid:gid, or names that the sandbox knows.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Most that its files may take, as in 2Gi.
    #[arg(long, value_name = "SIZE")]
    pub disk: Option<String>,
    /// Let it fall asleep this long after the last thing that needs it; 0 is never.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub idle: Option<u64>,
    /// Variable for every session; `KEY` alone takes the value from here. May be repeated.
    #[arg(short, long = "env", value_name = "KEY[=VALUE]")]
    pub env: Vec<String>,
    /// The whole `config` object from a YAML or JSON file, `-` for standard input.
    #[arg(short = 'f', long = "config-file", value_name = "FILE", conflicts_with_all = [
        "ttl", "hard_ttl", "auto_resume", "memory", "cpu", "pids", "disk", "idle", "env",
        "network", "egress", "allow", "user"
    ])]
    pub file: Option<PathBuf>,
}

/// One sandbox.
#[derive(Debug, Args)]
pub struct OneSandbox {
    /// The sandbox's id.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,
}

/// Whether a command returns before what it asks for is seen by everybody.
#[derive(Debug, Clone, Copy, Args)]
pub struct Wait {
    /// Return only once the sandbox is seen to be so, and show it.
    #[arg(long)]
    pub wait: bool,
    /// Give up waiting after this long; what was begun goes on.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION", default_value_t = WAIT_SECONDS_DEFAULT, requires = "wait")]
    pub timeout: u64,
}

/// The commands of `sandbox`.
#[derive(Debug, Subcommand)]
pub enum Sandbox {
    /// Make a sandbox.
    #[command(
        after_help = "Example:\n  outlive sandbox create --memory 512Mi -e STAGE=test\n  \
                      outlive sandbox create --image python:3.13\n  \
                      outlive sandbox create --snapshot-id before-upgrade"
    )]
    Create {
        /// What it is made from [default: that of the snapshot, else `default`].
        #[arg(short, long, value_name = "NAME")]
        template: Option<String>,
        /// An image, instead of the template's; `outlive image list` shows them.
        #[arg(long, value_name = "NAME", conflicts_with = "snapshot_id")]
        image: Option<String>,
        /// A snapshot whose files it starts with, and whose image: an id or a name.
        #[arg(long, value_name = "SNAPSHOT")]
        snapshot_id: Option<String>,
        /// Its settings.
        #[command(flatten)]
        config: SandboxConfig,
    },
    /// List sandboxes; never wakes one.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  outlive sandbox list --status running"
    )]
    List {
        /// Only those with this status.
        #[arg(long, value_enum)]
        status: Option<Status>,
        /// Only those made from this template.
        #[arg(long, value_name = "NAME")]
        template_id: Option<String>,
        /// Only paused ones (true) or the others (false).
        #[arg(long, value_name = "BOOL")]
        paused: Option<bool>,
        /// Most sandboxes, 1 to 200.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Skip this many.
        #[arg(long, default_value_t = 0)]
        offset: u64,
    },
    /// Show a sandbox; never wakes it.
    #[command(after_help = "Example:\n  outlive sandbox get sbx-0a1b2c3d-4e5")]
    Get(OneSandbox),
    /// Show a sandbox's status; never wakes it.
    #[command(after_help = "Example:\n  outlive sandbox status sbx-0a1b2c3d-4e5")]
    Status(OneSandbox),
    /// Change a sandbox's settings.
    ///
    /// What no flag names stays as it is. `--env` replaces all variables there were, and `--allow`
    /// all addresses.
    #[command(after_help = "Example:\n  outlive sandbox update sbx-0a1b2c3d-4e5 --ttl 3600")]
    Update {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// The new settings.
        #[command(flatten)]
        config: SandboxConfig,
    },
    /// Give its runtime back: every process ends, disk and journals stay.
    #[command(after_help = "Example:\n  outlive sandbox pause sbx-0a1b2c3d-4e5 --wait")]
    Pause {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// Whether to wait.
        #[command(flatten)]
        wait: Wait,
    },
    /// Start its next runtime; sessions recover by their own policy. One that sleeps only wakes.
    #[command(after_help = "Example:\n  outlive sandbox resume sbx-0a1b2c3d-4e5 --wait")]
    Resume {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// Whether to wait.
        #[command(flatten)]
        wait: Wait,
    },
    /// Put it to sleep: every process stands still where it is, and goes on there when it wakes.
    #[command(after_help = "Example:\n  outlive sandbox suspend sbx-0a1b2c3d-4e5")]
    Suspend(OneSandbox),
    /// Wake it: the same processes go on, or its next runtime starts if it was paused.
    #[command(after_help = "Example:\n  outlive sandbox wake sbx-0a1b2c3d-4e5")]
    Wake(OneSandbox),
    /// Show what keeps it awake, and when it falls asleep; never wakes it.
    #[command(after_help = "Example:\n  outlive sandbox activity sbx-0a1b2c3d-4e5")]
    Activity(OneSandbox),
    /// Keep it from falling asleep for a while. Does not wake it.
    #[command(
        after_help = "Example:\n  outlive sandbox hold sbx-0a1b2c3d-4e5 --owner nightly-build --ttl 7200"
    )]
    Hold {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// Who needs it: words that tell others whom to ask.
        #[arg(long, default_value = "outlive", value_name = "NAME")]
        owner: String,
        /// For how long.
        #[arg(long, value_parser = duration::seconds, value_name = "DURATION", default_value_t = HOLD_SECONDS_DEFAULT)]
        ttl: u64,
    },
    /// List the holds that did not end; never wakes it.
    #[command(after_help = "Example:\n  outlive sandbox holds sbx-0a1b2c3d-4e5")]
    Holds(OneSandbox),
    /// End a hold before its time.
    #[command(
        after_help = "Example:\n  outlive sandbox unhold sbx-0a1b2c3d-4e5 hold-0123456789abcdef"
    )]
    Unhold {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// The hold's id.
        #[arg(value_name = "HOLD")]
        hold: String,
    },
    /// Make another sandbox with the files that this one has now, and none of its sessions.
    ///
    /// The new sandbox is paused; whatever needs it starts it. The first one is neither woken nor
    /// changed.
    #[command(after_help = "Example:\n  outlive sandbox fork sbx-0a1b2c3d-4e5 --ttl 3600")]
    Fork {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// Pause the new one this long after its last refresh.
        #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
        ttl: Option<u64>,
        /// Delete the new one after this long.
        #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
        hard_ttl: Option<u64>,
    },
    /// Keep the files that a sandbox has now, make others from them, or go back to them.
    #[command(
        subcommand,
        after_help = "Example:\n  outlive sandbox snapshot create sbx-0a1b2c3d-4e5 --name before-upgrade"
    )]
    Snapshot(super::snapshot::Snapshot),
    /// Put its expiry off.
    #[command(after_help = "Example:\n  outlive sandbox refresh sbx-0a1b2c3d-4e5 --duration 3600")]
    Refresh {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// From now on [default: its ttl].
        #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
        duration: Option<u64>,
    },
    /// Delete a sandbox with its disk, sessions and journals.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  outlive sandbox delete sbx-0a1b2c3d-4e5"
    )]
    Delete(OneSandbox),
    /// Run a command in a sandbox and pass on its output and exit code.
    ///
    /// It runs as a context: it goes on when this client is interrupted or loses its connection.
    /// What it leaves in the background goes on, too; what that writes after the exit is not kept:
    /// redirect it to a file. Exit codes other than the program's own: 125 outlive itself failed,
    /// 124 the --timeout passed, 128+N the program died of signal N.
    #[command(after_help = exec::EXEC_EXAMPLES)]
    Exec(Box<Exec>),
    /// Carry code out in an interpreter of a sandbox.
    ///
    /// The exit code is that of the code: 0, 1 when it failed, that of the last command in a
    /// shell; 125 when outlive itself failed. Ctrl-C interrupts the code.
    #[command(after_help = exec::RUN_EXAMPLES)]
    Run(Box<RunCode>),
    /// List the commands of `exec` and the interpreters of `run`; never wakes it.
    ///
    /// Newest last, also those that have ended, until the sandbox has too many of them. Every
    /// command of `outlive session` takes their ids: `attach --after 0` for the output, `stop`,
    /// `signal`, `delete`.
    #[command(after_help = "Example:\n  outlive sandbox contexts sbx-0a1b2c3d-4e5")]
    Contexts(OneSandbox),
    /// Copy files into a sandbox or out of it.
    ///
    /// Directories with everything in them; modes and times are kept, owners are not. The sandbox
    /// needs `tar`, and `dd` to copy out of it. What comes out of a sandbox is written below the
    /// destination and nowhere else, whatever its names and links say.
    #[command(after_help = exec::CP_EXAMPLES)]
    Cp(Copy),
    /// The same as `outlive session`.
    #[command(
        subcommand,
        hide = true,
        after_help = "Example:\n  outlive sandbox session list sbx-0a1b2c3d-4e5"
    )]
    Session(super::session::Session),
}
