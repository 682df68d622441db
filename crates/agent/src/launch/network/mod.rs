//! A network of its own for each sandbox.
//!
//! ```text
//!   host                             sandbox (network namespace of O)
//!     route ADDRESS ─► olvXXXX ═════ eth0  ADDRESS/32
//!     GATEWAY/32 on olvXXXX          default by GATEWAY
//!     rules: table inet outlive      no capability to change any of it
//! ```
//!
//! No sandbox shares a link with another: each has one with the host, which forwards by its
//! rules. So there is no bridge between them whose traffic the rules wouldn't see, and no address
//! that can be taken from a neighbour. Which addresses are free the host's routes know: adding one
//! fails where it is taken, also by another server.
//!
//! The devices go with the network namespace, that is with the keeper. The rules are removed by
//! the sweep, which finds in the sandbox's directory which they are; the file is written before
//! anything is made. Rules whose sandbox nobody sweeps any more are found by [`hold`]. What all
//! sandboxes share is there for as long as there is one, or a server that might make one.
//!
//! There is no IPv6: it is off at both ends of the link, and the rules drop all of it.

mod doors;
mod hold;
mod netlink;
mod rules;
mod served;
mod tables;
mod text;
mod wire;

use std::{io, net::Ipv4Addr, path::PathBuf};

use outlive_api::launch::{LaunchConfig, LaunchFailure, WayOut};

pub use self::hold::main as hold;
use self::{
    netlink::Links,
    rules::{Admission, Admitted, Reach, Rules},
};
use super::step::{Fail, Step, failure};
use crate::rootless::Standing;

/// The device inside.
const INSIDE: &str = "eth0";
/// Where a sandbox's device and address are written down, in its directory.
const NOTES: &str = "network";
/// How many addresses are tried from the preferred one on.
const ADDRESSES_TRIED_MAX: u32 = 4096;

/// What the sandbox's side needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inside {
    pub(super) address: Ipv4Addr,
    pub(super) gateway: Ipv4Addr,
}

impl Inside {
    /// Bytes of [`Inside::to_bytes`].
    pub(super) const BYTES: usize = 8;

    /// For the pipe between the launcher and the sandbox's first process.
    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let both = u64::from(self.address.to_bits()) << 32 | u64::from(self.gateway.to_bits());
        both.to_be_bytes()
    }

    pub(super) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [address, gateway] =
            [bytes.first_chunk(), bytes.last_chunk()].map(|part| part.copied().unwrap_or_default());
        Self {
            address: Ipv4Addr::from_octets(address),
            gateway: Ipv4Addr::from_octets(gateway),
        }
    }
}

/// A sandbox whose rules are on their way into the kernel, which takes its time.
#[must_use = "the rules hold once this is finished"]
pub(super) struct Connecting {
    rules: Rules,
    admission: Admission,
}

impl Connecting {
    /// Waits until the rules hold.
    pub(super) fn finish(mut self) -> Step<()> {
        let done = self.rules.finish(self.admission);
        done.step("writing the network's rules")
            .map_err(of_this_sandbox)
    }
}

/// On the host: connects the network namespace of a process. It reaches nothing before its
/// rules hold.
pub(super) fn connect(config: &LaunchConfig, pid: u32) -> Step<(Inside, Connecting)> {
    connect_to(config, pid).map_err(of_this_sandbox)
}

/// A failure is this sandbox's: it is no reason to run others with less around them.
fn of_this_sandbox(failure: LaunchFailure) -> LaunchFailure {
    LaunchFailure {
        unsupported: false,
        ..failure
    }
}

fn connect_to(config: &LaunchConfig, pid: u32) -> Step<(Inside, Connecting)> {
    let way_out = config
        .way_out
        .as_ref()
        .ok_or_else(|| failure("connecting the sandbox", "no way out was given"))?;
    let device = device_of(config);
    let gateway = way_out
        .pool
        .nth(1)
        .ok_or_else(|| failure("connecting the sandbox", "the pool has no addresses"))?;
    let links = Links::open().step("opening netlink")?;
    note(config, &device, None)?;
    links
        .make_pair(&device, INSIDE, pid)
        .step("making a pair of network devices")?;
    set("ipv6", &device, "disable_ipv6", "1")?;
    let index = links.start(&device).step("starting a network device")?;
    links
        .add_address(index, gateway)
        .step("giving a network device its address")?;
    let address = take_address(&links, index, way_out)?;
    note(config, &device, Some(address))?;
    let admitted = Admitted { device, address };
    let mut rules = Rules::lock().step("waiting for the network's rules")?;
    // The sweep before has removed all that knew this device.
    let admission = rules
        .begin_anew(&admitted, &Reach::from(way_out))
        .step("writing the network's rules")?;
    Ok((Inside { address, gateway }, Connecting { rules, admission }))
}

/// In the sandbox's network namespace, as its owner: goes on from what the host made.
pub(super) fn settle(inside: Inside) -> Step<()> {
    let step = "starting the sandbox's network";
    set("ipv6", INSIDE, "disable_ipv6", "1")?;
    let links = Links::open().step(step)?;
    let index = links.start(INSIDE).step(step)?;
    links.add_address(index, inside.address).step(step)?;
    links.add_default(index, inside.gateway).step(step)
}

/// Has a running sandbox reach what its configuration says now, for what it has open, too.
pub(super) fn change(config: &LaunchConfig) -> Step<()> {
    let step = "changing the network's rules";
    let (Some(way_out), Some((device, Some(address)))) = (&config.way_out, noted(config)?) else {
        return Err(failure(step, "the sandbox has no network of its own"));
    };
    let admitted = (Admitted { device, address }, Reach::from(way_out));
    Rules::lock().step(step)?.admit(&[admitted]).step(step)
}

/// Removes what is left of a sandbox's network.
pub(super) fn sweep(config: &LaunchConfig) -> Step<()> {
    let Some((device, address)) = noted(config)? else {
        return Ok(());
    };
    let links = Links::open().step("opening netlink")?;
    links
        .remove(&device)
        .step("removing the sandbox's network device")?;
    if let Some(address) = address {
        let step = "removing the network's rules";
        let mut rules = Rules::lock().step(step)?;
        rules.forget(&[Admitted { device, address }]).step(step)?;
    }
    match std::fs::remove_file(notes(config)) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).step("removing what is noted of the network"),
    }
}

/// Whether sandboxes of this host can be connected.
pub(crate) fn probe() -> io::Result<()> {
    if Standing::here()? != Standing::Root {
        return Err(io::Error::other("needs root of the machine"));
    }
    rules::probe()?;
    let links = Links::open()?;
    let pid = std::process::id();
    // No sandbox's, by its name.
    let name = format!("olp{pid:x}");
    links.make_pair(&name, &format!("{name}i"), pid)?;
    links.remove(&name).map(drop)
}

/// The name of a sandbox's device on the host: 14 of the 15 bytes that there are.
fn device_of(config: &LaunchConfig) -> String {
    let id: String = config
        .sandbox
        .as_str()
        .chars()
        .skip_while(|c| *c != '-')
        .filter(|c| *c != '-')
        .collect();
    format!("{}{id}", rules::DEVICE_PREFIX)
}

/// The first address from the preferred one on that nobody has.
fn take_address(links: &Links, index: u32, way_out: &WayOut) -> Step<Ipv4Addr> {
    // The pool's first two are its name and the gateway.
    let from = u32::from(way_out.preferred) + 2;
    for tried in 0..ADDRESSES_TRIED_MAX {
        let Some(address) = way_out.pool.nth(from + tried) else {
            break;
        };
        let step = "giving the sandbox an address";
        if links.add_neighbour(index, address).step(step)? {
            return Ok(address);
        }
    }
    Err(failure(
        "giving the sandbox an address",
        "none of the pool is free",
    ))
}

/// A setting of a device; a kernel without IPv6 has none of those.
fn set(family: &str, device: &str, name: &str, value: &str) -> Step<()> {
    let path = format!("/proc/sys/net/{family}/conf/{device}/{name}");
    match std::fs::write(&path, value) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).step(&format!("writing {path}")),
    }
}

fn notes(config: &LaunchConfig) -> PathBuf {
    PathBuf::from(&config.directory).join(NOTES)
}

fn note(config: &LaunchConfig, device: &str, address: Option<Ipv4Addr>) -> Step<()> {
    let address = address.map_or(String::new(), |address| address.to_string());
    std::fs::write(notes(config), format!("{device} {address}\n"))
        .step("writing down the sandbox's network")
}

/// The device and address that were written down. A torn note is one without an address: then
/// no rule was made either.
fn noted(config: &LaunchConfig) -> Step<Option<(String, Option<Ipv4Addr>)>> {
    let text = match std::fs::read_to_string(notes(config)) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).step("reading what is noted of the network"),
    };
    let address = text
        .trim()
        .split_once(' ')
        .and_then(|(_, address)| address.parse().ok());
    Ok(Some((device_of(config), address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_survive_the_pipe() {
        let inside = Inside {
            address: Ipv4Addr::new(10, 201, 3, 4),
            gateway: Ipv4Addr::new(10, 201, 0, 1),
        };
        assert_eq!(Inside::from_bytes(inside.to_bytes()), inside);
    }
}
