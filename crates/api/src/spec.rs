//! The specification of a session as JSON: optional on the way in, normalised on the way out.
//!
//! One set of shapes serves both ways, as in the vendor's schema, so that what a client reads can
//! be sent back. Numbers are `i64` here because a number out of range is a reason to refuse, not
//! a type; `outlive_core::spec::RawSpec::validate` decides.

use std::collections::BTreeMap;

use outlive_core::spec as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

// The texts are `tt`: a `literal` fragment is opaque to the derive that describes the schema.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident = $core:path {
        $($(#[$vdoc:meta])* $variant:ident = $text:tt $(| $alias:tt)? => $cvariant:ident,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text $(, alias = $alias)?)] $variant,)*
        }

        impl $name {
            /// The text on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl From<$core> for $name {
            fn from(value: $core) -> Self {
                match value { $(<$core>::$cvariant => Self::$variant,)* }
            }
        }

        impl From<$name> for $core {
            fn from(value: $name) -> Self {
                match value { $($name::$variant => Self::$cvariant,)* }
            }
        }
    };
}
pub(crate) use wire_enum;

// The vendor reads an empty text as "not given": the default's alias.
wire_enum! {
    /// The state asked for.
    DesiredState = core::DesiredState {
        /// An attempt should run.
        Running = "running" | "" => Running,
        /// No attempt should run.
        Stopped = "stopped" => Stopped,
    }
}

wire_enum! {
    /// When an attempt that ended is followed by another.
    RestartPolicy = core::RestartPolicy {
        /// Never.
        Never = "never" | "" => Never,
        /// After a failure.
        OnFailure = "on_failure" => OnFailure,
        /// After any exit.
        Always = "always" => Always,
    }
}

wire_enum! {
    /// What happens to an active session when its runtime is replaced.
    RuntimeRecovery = core::RuntimeRecovery {
        /// A new attempt starts.
        Restart = "restart" | "" => Restart,
        /// It stays stopped.
        Stop = "stop" => Stop,
    }
}

wire_enum! {
    /// What happens to processes that outlive the attempt's leader.
    Descendants = core::Descendants {
        /// They go on.
        Leave = "leave" | "" => Leave,
        /// They are killed.
        Kill = "kill" => Kill,
    }
}

wire_enum! {
    /// How the streams are connected.
    IoMode = core::IoMode {
        /// Three pipes.
        Pipes = "pipes" | "" => Pipes,
        /// One pseudo terminal.
        Pty = "pty" => Pty,
    }
}

wire_enum! {
    /// When an attempt counts as ready.
    ReadinessType = core::ReadinessKind {
        /// As soon as the process runs.
        Process = "process" | "" => Process,
        /// When it has lived for `delay_ms`.
        Delay = "delay" => Delay,
        /// When `output` appeared.
        Output = "output" => Output,
    }
}

/// What a session should run and how.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SessionSpec {
    /// A label, not unique.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub name: Option<String>,
    /// Program and arguments; no shell, looked up in `PATH`.
    #[schema(min_items = 1, max_items = 4096)]
    pub command: Vec<String>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables on top of the sandbox's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// The streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoSpec>,
    /// Start, restart and end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<LifecycleSpec>,
    /// Readiness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<ReadinessSpec>,
    /// How much of the journal is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_retention: Option<EventRetentionSpec>,
    /// Whom it runs as: uid, uid:gid, or names that the sandbox knows; left out, the sandbox's
    /// user. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// The streams.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct IoSpec {
    /// Default `pipes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<IoMode>,
    /// For `pty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSpec>,
}

/// The terminal that a session starts with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct TerminalSpec {
    /// Lines; default 24.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0, maximum = 65535)]
    pub rows: Option<i64>,
    /// Columns; default 80.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0, maximum = 65535)]
    pub cols: Option<i64>,
    /// `TERM`; default `xterm-256color`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
}

/// Start, restart and end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LifecycleSpec {
    /// Default `running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_state: Option<DesiredState>,
    /// The restart policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartSpec>,
    /// Default `restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_recovery: Option<RuntimeRecovery>,
    /// Stop after this long without activity; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub idle_timeout_seconds: Option<i64>,
    /// Stop this long after creation; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub max_lifetime_seconds: Option<i64>,
    /// Between the stop signal and the kill; default 10. An attempt that an update ends has that of
    /// the specification before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub stop_grace_period_seconds: Option<i64>,
    /// Default `leave`. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descendants: Option<Descendants>,
}

/// The restart policy with its window and backoff.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct RestartSpec {
    /// Default `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<RestartPolicy>,
    /// Restarts allowed in the window; default 5, -1 is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = -1)]
    pub max_restarts: Option<i64>,
    /// Default 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub window_seconds: Option<i64>,
    /// Default 250.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub initial_backoff_ms: Option<i64>,
    /// Default 5000; not below the initial one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub max_backoff_ms: Option<i64>,
}

/// Readiness.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReadinessSpec {
    /// Default `process`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ReadinessType>,
    /// For `delay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub delay_ms: Option<i64>,
    /// For `output`: what to look for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Default 30000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub timeout_ms: Option<i64>,
}

/// How much of the journal is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct EventRetentionSpec {
    /// Default 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub max_bytes: Option<i64>,
    /// Default 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub max_age_seconds: Option<i64>,
}

impl From<&core::SessionSpec> for SessionSpec {
    fn from(spec: &core::SessionSpec) -> Self {
        Self {
            name: text(&spec.name),
            command: spec.command.clone(),
            cwd: text(&spec.cwd),
            env: (!spec.env.is_empty()).then(|| spec.env.clone()),
            io: Some(IoSpec::from(&spec.io)),
            lifecycle: Some(LifecycleSpec::from(&spec.lifecycle)),
            readiness: Some(ReadinessSpec::from(&spec.readiness)),
            event_retention: Some(EventRetentionSpec {
                max_bytes: Some(wide(spec.retention.bytes_max)),
                max_age_seconds: Some(wide(spec.retention.age_seconds_max)),
            }),
            user: spec.user.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&core::Io> for IoSpec {
    fn from(io: &core::Io) -> Self {
        match io {
            core::Io::Pipes => Self {
                mode: Some(IoMode::Pipes),
                terminal: None,
            },
            core::Io::Pty(terminal) => Self {
                mode: Some(IoMode::Pty),
                terminal: Some(TerminalSpec {
                    rows: Some(terminal.rows.into()),
                    cols: Some(terminal.cols.into()),
                    term: Some(terminal.term.clone()),
                }),
            },
        }
    }
}

impl From<&core::Lifecycle> for LifecycleSpec {
    fn from(lifecycle: &core::Lifecycle) -> Self {
        let restart = &lifecycle.restart;
        Self {
            desired_state: Some(lifecycle.desired_state.into()),
            restart: Some(RestartSpec {
                policy: Some(restart.policy.into()),
                max_restarts: Some(restart.restarts_max.map_or(-1, i64::from)),
                window_seconds: Some(restart.window_seconds.into()),
                initial_backoff_ms: Some(restart.backoff_ms_initial.into()),
                max_backoff_ms: Some(restart.backoff_ms_max.into()),
            }),
            runtime_recovery: Some(lifecycle.runtime_recovery.into()),
            idle_timeout_seconds: nonzero(lifecycle.idle_timeout_seconds),
            max_lifetime_seconds: nonzero(lifecycle.max_lifetime_seconds),
            stop_grace_period_seconds: Some(lifecycle.stop_grace_seconds.into()),
            descendants: match lifecycle.descendants {
                core::Descendants::Leave => None,
                core::Descendants::Kill => Some(Descendants::Kill),
            },
        }
    }
}

impl From<&core::Readiness> for ReadinessSpec {
    fn from(readiness: &core::Readiness) -> Self {
        let (kind, delay_ms, output, timeout_ms) = match readiness {
            core::Readiness::Process {
                timeout_ms,
                delay_ms,
            } => (ReadinessType::Process, delay_ms, None, timeout_ms),
            core::Readiness::Delay {
                delay_ms,
                timeout_ms,
            } => (ReadinessType::Delay, delay_ms, None, timeout_ms),
            core::Readiness::Output {
                needle,
                timeout_ms,
                delay_ms,
            } => {
                let needle = String::from_utf8_lossy(needle).into_owned();
                (ReadinessType::Output, delay_ms, Some(needle), timeout_ms)
            }
        };
        Self {
            kind: Some(kind),
            delay_ms: nonzero((*delay_ms).into()),
            output,
            timeout_ms: Some((*timeout_ms).into()),
        }
    }
}

impl From<SessionSpec> for core::RawSpec {
    fn from(spec: SessionSpec) -> Self {
        let io = spec.io.unwrap_or_default();
        let terminal = io.terminal.unwrap_or_default();
        let lifecycle = spec.lifecycle.unwrap_or_default();
        let restart = lifecycle.restart.unwrap_or_default();
        let readiness = spec.readiness.unwrap_or_default();
        let retention = spec.event_retention.unwrap_or_default();
        Self {
            name: spec.name,
            command: Some(spec.command),
            cwd: spec.cwd,
            user: spec.user,
            env: spec.env,
            io: core::RawIo {
                mode: io.mode.map(Into::into),
                terminal: core::RawTerminal {
                    rows: terminal.rows,
                    cols: terminal.cols,
                    term: terminal.term,
                },
            },
            lifecycle: core::RawLifecycle {
                desired_state: lifecycle.desired_state.map(Into::into),
                restart: core::RawRestart {
                    policy: restart.policy.map(Into::into),
                    max_restarts: restart.max_restarts,
                    window_seconds: restart.window_seconds,
                    initial_backoff_ms: restart.initial_backoff_ms,
                    max_backoff_ms: restart.max_backoff_ms,
                },
                runtime_recovery: lifecycle.runtime_recovery.map(Into::into),
                idle_timeout_seconds: lifecycle.idle_timeout_seconds,
                max_lifetime_seconds: lifecycle.max_lifetime_seconds,
                stop_grace_period_seconds: lifecycle.stop_grace_period_seconds,
                descendants: lifecycle.descendants.map(Into::into),
            },
            readiness: core::RawReadiness {
                kind: readiness.kind.map(Into::into),
                delay_ms: readiness.delay_ms,
                output: readiness.output,
                timeout_ms: readiness.timeout_ms,
            },
            event_retention: core::RawRetention {
                max_bytes: retention.max_bytes,
                max_age_seconds: retention.max_age_seconds,
            },
        }
    }
}

fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn nonzero(value: u64) -> Option<i64> {
    (value != 0).then(|| wide(value))
}

fn wide(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
