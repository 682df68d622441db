//! What this machine can do, one `key=value` a line, for `outlive doctor`.
//!
//! Every answer comes from trying, not from version numbers. Keys:
//!
//! ```text
//!   isolation      nested | two-uid | none     what a launch would reach here
//!   journal_protected  true | false
//!   userns         ok | reason
//!   cgroup2        path | reason               our group, when we may make groups in it
//!   cgroup.memory, cgroup.pids, cgroup.cpu     v1 PATH | v2 | reason
//!   splice_pty     ok | reason
//!   pidfd_exit     ok | reason                 the kernel knows exits that others reaped
//!   idmap_usr      ok | reason                 /usr can be shown through other ids
//!   bridge         ok | reason                 sandboxes can have a network of their own
//!   off            one sentence; repeated
//! ```

use std::{io, os::fd::AsFd};

use rustix::{
    fs::CWD,
    mount::{OpenTreeFlags, open_tree},
    pipe::{SpliceFlags, splice},
    process::{WaitId, WaitIdOptions, waitid},
};

use crate::{
    launch::{Hierarchy, discover, probe_bridge, user_namespace},
    process::pty,
    sys::{self, Forked},
};

/// Prints the report.
pub fn main() -> anyhow::Result<()> {
    rustix::io::write(rustix::stdio::stdout(), report().as_bytes())?;
    Ok(())
}

fn report() -> String {
    let mut lines = Vec::new();
    let mut off = Vec::new();
    let userns = probe_userns();
    let idmap = probe_idmap();
    let root = rustix::process::geteuid().is_root();
    let nested = root && userns.is_ok();
    lines.push(format!(
        "isolation={}",
        if nested { "nested" } else { "none" }
    ));
    lines.push(format!("journal_protected={nested}"));
    if !nested {
        off.push(
            "isolation: needs root and user namespaces; the process runtime is left".to_owned(),
        );
    }
    lines.push(line("userns", userns.map(|()| "ok".to_owned())));
    let hierarchies = discover();
    let unified = probe_unified(&hierarchies);
    if unified.is_err() {
        off.push("freeze and kill as a whole: no cgroup2 group of our own".to_owned());
    }
    lines.push(line("cgroup2", unified));
    for controller in ["memory", "pids", "cpu"] {
        let found = probe_controller(&hierarchies, controller);
        if found.is_err() {
            off.push(format!(
                "limit of {controller}: no controller to enforce it"
            ));
        }
        lines.push(line(&format!("cgroup.{controller}"), found));
    }
    let splice = probe_splice();
    if splice.is_err() {
        off.push("output in the kernel: terminals are copied through memory".to_owned());
    }
    lines.push(line("splice_pty", splice.map(|()| "ok".to_owned())));
    lines.push(line(
        "pidfd_exit",
        probe_pidfd_exit().map(|()| "ok".to_owned()),
    ));
    if idmap.is_err() {
        off.push("idmapped mounts: files of /usr belong to nobody inside".to_owned());
    }
    lines.push(line("idmap_usr", idmap.map(|()| "ok".to_owned())));
    let bridge = probe_bridge();
    if bridge.is_err() {
        off.push("network `bridge`: sandboxes reach nothing, or the host's network".to_owned());
    }
    lines.push(line("bridge", bridge.map(|()| "ok".to_owned())));
    lines.extend(off.into_iter().map(|sentence| format!("off={sentence}")));
    lines.push(String::new());
    lines.join("\n")
}

fn line(key: &str, value: io::Result<String>) -> String {
    match value {
        Ok(value) => format!("{key}={value}"),
        Err(e) => format!("{key}=no: {e}"),
    }
}

fn refused(message: &str) -> io::Error {
    io::Error::other(message.to_owned())
}

fn probe_userns() -> io::Result<()> {
    user_namespace(own_id()).map(drop).map_err(io::Error::other)
}

/// An id that we may map: root can map any, others only their own.
fn own_id() -> u32 {
    match rustix::process::geteuid().as_raw() {
        0 => 0x1000_0001,
        own => own,
    }
}

fn probe_idmap() -> io::Result<()> {
    let userns = user_namespace(own_id()).map_err(io::Error::other)?;
    let tree = open_tree(
        CWD,
        "/usr",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    sys::idmap_mount(tree.as_fd(), userns.as_fd())
}

fn probe_unified(hierarchies: &[Hierarchy]) -> io::Result<String> {
    let unified = hierarchies
        .iter()
        .find(|h| h.controller.is_empty())
        .ok_or_else(|| refused("no cgroup2 mount"))?;
    writable(&unified.base)?;
    Ok(unified.base.clone())
}

fn writable(path: &str) -> io::Result<()> {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?;
    Ok(())
}

fn probe_controller(hierarchies: &[Hierarchy], controller: &str) -> io::Result<String> {
    if let Some(v1) = hierarchies.iter().find(|h| h.controller == controller) {
        writable(&v1.base)?;
        return Ok(format!("v1 {}", v1.base));
    }
    let unified = hierarchies
        .iter()
        .find(|h| h.controller.is_empty())
        .ok_or_else(|| refused("no cgroup2 mount"))?;
    let controllers = std::fs::read_to_string(format!("{}/cgroup.controllers", unified.base))?;
    if controllers
        .split_whitespace()
        .any(|name| name == controller)
    {
        Ok("v2".to_owned())
    } else {
        Err(refused("not delegated to us"))
    }
}

fn probe_splice() -> io::Result<()> {
    let pty = pty::open(None, 24, 80, None)?;
    rustix::io::write(&pty.slave, b"x")?;
    let moved = splice(
        &pty.master,
        None,
        &pty.spill_write,
        None,
        4096,
        SpliceFlags::NONBLOCK,
    )?;
    if moved == 1 {
        Ok(())
    } else {
        Err(refused("a byte got lost"))
    }
}

/// Makes a child, reaps it, and asks its pidfd afterwards.
fn probe_pidfd_exit() -> io::Result<()> {
    match sys::fork_into(0, None)? {
        Forked::Child => sys::exit_now(7),
        Forked::Parent { pidfd, .. } => {
            waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            match sys::pidfd_exit_status(pidfd.as_fd())? {
                Some(outlive_core::event::ExitStatus::Code(7)) => Ok(()),
                Some(_) => Err(refused("a wrong status")),
                None => Err(refused("the kernel is older than 6.15")),
            }
        }
    }
}
