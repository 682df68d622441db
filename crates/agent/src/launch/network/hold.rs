//! Has the rules of all sandboxes be what they should be while a server runs.
//!
//! ```text
//!   server ── HoldConfig ──► hold   from now on a server runs
//!                             │     what all share is written, what nobody has is removed
//!          ◄───── READY ──────┤
//!          ─── its end ──────►│     from now on it runs no more
//!                             ▼     what nobody has is removed, what all share with the last
//! ```
//!
//! A sandbox that nobody sweeps leaves rules behind: its directory was removed by hand, or its
//! server was and never came back. Its device is gone then, since that goes with its keeper. So
//! rules without a device are forgotten, whoever made them. The rules of this server's sandboxes
//! that run are written anew: a firewall of the host may have flushed them.
//!
//! That the server ended is seen by its end of our standard output, which nobody else has. So it
//! may be killed: with the last server what all share goes, unless there are sandboxes.

use std::{fs, io, io::Write, os::fd::AsFd, path::Path};

use outlive_api::launch::{HoldConfig, LaunchConfig};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use super::{
    netlink::device_exists,
    noted,
    rules::{Admitted, Reach, Rules},
    served::Served,
};
use crate::{
    launch::{
        step::{Fail, Step},
        told,
    },
    sys::block_signals,
};

/// Reads a [`HoldConfig`], writes [`HoldConfig::READY`], and ends after who reads that.
pub fn main() -> anyhow::Result<()> {
    // They are for the server, which may have a terminal; we end after it.
    block_signals()?;
    let config: HoldConfig = told::read()?;
    let served = begin(&config)?;
    let mut server = io::stdout();
    match server
        .write_all(&HoldConfig::READY)
        .and_then(|()| server.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {} // It has ended already.
        written => written?,
    }
    wait_for_the_end_of(&server)?;
    drop(served);
    let rules = Rules::lock().step("waiting for the network's rules")?;
    tidy(rules)?;
    Ok(())
}

/// Waits until nobody reads any more.
fn wait_for_the_end_of(server: &impl AsFd) -> io::Result<()> {
    loop {
        // No event is asked for: that nobody reads is told all the same.
        match poll(&mut [PollFd::new(server, PollFlags::empty())], None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn begin(config: &HoldConfig) -> Step<Served> {
    let living = living(Path::new(&config.sandboxes))?;
    let step = "writing the network's rules";
    let mut rules = Rules::lock().step(step)?;
    let served = rules.serve().step(step)?;
    if !living.is_empty() {
        rules.admit(&living).step(step)?;
    }
    tidy(rules)?;
    Ok(served)
}

/// Forgets sandboxes without a device, looked at with the rules in hand: nobody is let out
/// meanwhile.
fn tidy(mut rules: Rules) -> Step<()> {
    let step = "tidying up the network's rules";
    let mut gone = Vec::new();
    for sandbox in rules.admitted().step(step)? {
        if !device_exists(&sandbox.device).step(step)? {
            gone.push(sandbox);
        }
    }
    rules.forget(&gone).step(step)
}

/// This server's sandboxes that have a device, and what they reach.
fn living(sandboxes: &Path) -> Step<Vec<(Admitted, Reach)>> {
    let step = "reading what was launched";
    let mut living = Vec::new();
    for entry in fs::read_dir(sandboxes).step(step)? {
        let Some(config) = launched(&entry.step(step)?.path()).step(step)? else {
            continue;
        };
        let (Some(way_out), Some((device, Some(address)))) = (&config.way_out, noted(&config)?)
        else {
            continue;
        };
        if device_exists(&device).step(step)? {
            living.push((Admitted { device, address }, Reach::from(way_out)));
        }
    }
    Ok(living)
}

/// What a sandbox was launched with; nothing where it never was, or by a version whose message
/// says nothing to us.
fn launched(directory: &Path) -> io::Result<Option<LaunchConfig>> {
    match fs::read(directory.join(LaunchConfig::FILE)) {
        Ok(bytes) => Ok(minicbor::decode(&bytes).ok()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
