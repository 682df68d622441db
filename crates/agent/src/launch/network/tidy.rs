//! Makes the rules of all sandboxes what they should be: once, when a server starts.
//!
//! A sandbox that nobody sweeps leaves rules behind: its directory was removed by hand, or its
//! server was and never came back. Its device is gone then, since that goes with its keeper. So
//! rules without a device are forgotten, whoever made them. The rules of this server's sandboxes
//! that run are written anew: a firewall of the host may have flushed them.

use std::{fs, io, io::Read, path::Path};

use outlive_api::launch::{LaunchConfig, TidyConfig};

use super::{
    netlink::device_exists,
    noted,
    rules::{Admitted, Reach, Rules},
};
use crate::launch::step::{Fail, Step};

/// Longest configuration, in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Reads a [`TidyConfig`] and tidies up.
pub fn main() -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    let mut stdin = io::stdin().take(CONFIG_BYTES_MAX);
    stdin.read_to_end(&mut bytes)?;
    let config: TidyConfig = minicbor::decode(&bytes)?;
    tidy(&config)?;
    Ok(())
}

fn tidy(config: &TidyConfig) -> Step<()> {
    let living = living(Path::new(&config.sandboxes))?;
    let step = "tidying up the network's rules";
    let mut rules = Rules::lock().step(step)?;
    if !living.is_empty() {
        rules.admit(&living).step(step)?;
    }
    // Looked at with the rules in hand: nobody is let out meanwhile.
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
