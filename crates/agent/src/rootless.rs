//! An ordinary user's way to namespaces: a user namespace whose root that user is.
//!
//! ```text
//!   outlive serve, as U ─exec─► outlive-agent enter -- outlive serve … ─exec─► outlive serve, as 0
//!
//!   /etc/subuid grants U the ids S…   newuidmap, newgidmap      inside: 0 is U, 1… are S…
//!   nothing granted, or no such tool  the kernel alone allows   inside: 0 is U
//! ```
//!
//! Everything that the server starts is then started by root of that namespace and needs to know
//! no more than how many ids there are ([`IdRange::of_uid_map`]). The process stays the same one,
//! and its files belong to U.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
};

use outlive_api::launch::IdRange;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::{
    launch::step::{Fail, Step, failure},
    sys::{self, Forked},
};

/// The tools that map granted ids.
const TOOLS: [&str; 2] = ["newuidmap", "newgidmap"];
/// Where they may lie.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Who this process is to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Root of the machine.
    Root,
    /// Root of a user namespace, which has these ids.
    OfNamespace(IdRange),
    /// Nobody special.
    Ordinary,
}

impl Standing {
    /// Ours.
    pub(crate) fn here() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Ordinary);
        }
        let map = fs::read_to_string("/proc/self/uid_map")?;
        Ok(IdRange::of_uid_map(&map).map_or(Self::Root, Self::OfNamespace))
    }
}

/// `outlive-agent enter -- PROGRAM ARGUMENT…`: becomes the program, inside.
pub(crate) fn main() -> anyhow::Result<()> {
    let mut words = std::env::args_os().skip(2);
    anyhow::ensure!(
        words.next().is_some_and(|word| word == "--"),
        "enter takes -- and a program"
    );
    let words: Vec<OsString> = words.collect();
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| anyhow::anyhow!("enter takes a program"))?;
    enter()?;
    #[expect(
        clippy::disallowed_methods,
        reason = "becomes the program; there is neither a thread nor a gate"
    )]
    let error = Command::new(program).args(arguments).exec();
    Err(anyhow::Error::new(error).context(program.display().to_string()))
}

/// Ids that the machine's administrator granted to somebody, for users and groups alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grant {
    uids: u32,
    gids: u32,
    count: u32,
}

impl Grant {
    /// Ours, or why there is none.
    fn find() -> Result<Self, String> {
        let uid = rustix::process::getuid().as_raw();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let passwd = read("/etc/passwd");
        let name = name_of(&passwd, uid);
        let of = |path: &str| {
            largest(&read(path), name, uid).ok_or_else(|| format!("{path} grants this user none"))
        };
        let (uids, gids) = (of("/etc/subuid")?, of("/etc/subgid")?);
        for tool in TOOLS {
            let there = PATH
                .split(':')
                .any(|dir| fs::exists(format!("{dir}/{tool}")).is_ok_and(|there| there));
            if !there {
                return Err(format!("`{tool}` is not installed"));
            }
        }
        let count = uids.1.min(gids.1).min(IdRange::WORKLOAD_COUNT_MAX);
        Ok(Self {
            uids: uids.0,
            gids: gids.0,
            count,
        })
    }
}

fn name_of(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
        (id.parse() == Ok(uid)).then_some(name)
    })
}

/// First id and number of ids of the largest range that a line `OWNER:FIRST:COUNT` grants.
fn largest(text: &str, name: Option<&str>, uid: u32) -> Option<(u32, u32)> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':');
            let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let ours = Some(owner) == name || owner.parse() == Ok(uid);
            let range: (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
            (ours && range.1 > 0).then_some(range)
        })
        .max_by_key(|(_, count)| *count)
}

/// Enters a user namespace and a mount namespace of its own, as their root. Where only one id is
/// to be had there, answers why.
///
/// After a failure the process is of no more use.
pub(crate) fn enter() -> Step<Option<String>> {
    let grant = match Grant::find() {
        Ok(grant) => grant,
        Err(why) => {
            // Asked before: in there we are nobody.
            let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
            unshare()?;
            map_one(uid.as_raw(), gid.as_raw())?;
            return Ok(Some(why));
        }
    };
    let step = "mapping granted ids";
    let (gate, open) = pipe_with(PipeFlags::CLOEXEC).step(step)?;
    let (reports, report) = pipe_with(PipeFlags::CLOEXEC).step(step)?;
    let pid = std::process::id();
    // Only who stayed outside may call the tools.
    match sys::fork_single_threaded().step(step)? {
        Forked::Child => {
            drop((open, reports));
            map_granted(pid, grant, &gate, &report)
        }
        Forked::Parent { pidfd, .. } => {
            drop((gate, report));
            let entered = unshare().and_then(|()| {
                rustix::io::write(&open, b"g").step(step)?;
                let mut said = String::new();
                fs::File::from(reports)
                    .read_to_string(&mut said)
                    .step(step)?;
                if said.is_empty() {
                    Ok(None)
                } else {
                    Err(failure(step, &said))
                }
            });
            drop(open);
            rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            )
            .step(step)?;
            entered
        }
    }
}

fn unshare() -> Step<()> {
    sys::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).step("making a user namespace")
}

/// What the kernel allows everybody: to be root of a namespace without anybody else. In turn it
/// wants no more groups to be given up: one may be there to keep its members from something.
fn map_one(uid: u32, gid: u32) -> Step<()> {
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1\n")),
        ("gid_map", format!("0 {gid} 1\n")),
    ] {
        fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/self/{file}"))
            .and_then(|mut opened| opened.write_all(text.as_bytes()))
            .step(&format!("writing {file}"))?;
    }
    Ok(())
}

/// Outside: waits until the namespace is there, then has the tools map it.
fn map_granted(pid: u32, grant: Grant, gate: &OwnedFd, report: &OwnedFd) -> ! {
    // End of file: there is no namespace.
    if rustix::io::read(gate, &mut [0; 1]) == Ok(1) {
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        let done = run(TOOLS[0], pid, uid.as_raw(), grant.uids, grant.count)
            .and_then(|()| run(TOOLS[1], pid, gid.as_raw(), grant.gids, grant.count));
        if let Err(why) = done {
            match rustix::io::write(report, why.as_bytes()) {
                Ok(_) | Err(_) => {} // Whoever asked is gone.
            }
        }
    }
    sys::exit_now(0)
}

#[expect(
    clippy::disallowed_methods,
    reason = "this process has no other thread and no gate that could wait"
)]
fn run(tool: &str, pid: u32, own: u32, first: u32, count: u32) -> Result<(), String> {
    let words = [pid, 0, own, 1, 1, first, count].map(|word| word.to_string());
    let done = Command::new(tool)
        .args(words)
        .env("PATH", PATH)
        .output()
        .map_err(|error| format!("running `{tool}`: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("`{tool}` refused: {}", said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_granted_by_name_or_number_and_the_most_count() {
        let text = "# comment\nother:1:9\nuser:100000:65536\n1000:300000:70000\nuser:x:9\n";
        assert_eq!(largest(text, Some("user"), 1000), Some((300_000, 70_000)));
        assert_eq!(largest(text, Some("user"), 7), Some((100_000, 65_536)));
        assert_eq!(largest(text, None, 7), None);
        assert_eq!(largest("user:1:0\n", Some("user"), 7), None);
    }

    #[test]
    fn a_name_is_that_of_the_first_line_with_the_number() {
        let passwd = "root:x:0:0::/:/bin/sh\nuser:x:1000:100::/:/bin/sh\nagain:x:1000:1::/:\n";
        assert_eq!(name_of(passwd, 1000), Some("user"));
        assert_eq!(name_of(passwd, 1), None);
    }
}
