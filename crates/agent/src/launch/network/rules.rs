//! The rules of nftables, in the host's namespace, that a sandbox's traffic meets.
//!
//! One table for all servers of this host. What comes from a sandbox meets, in this order:
//!
//! ```text
//!   prerouting   not IPv4, or not its own address: dropped
//!                its link is cut: refused
//!                for the host, for many, for this link: refused
//!   forward      for another sandbox: refused
//!                the sandbox's own chain says yes or no, packet by packet
//!   postrouting  leaves under the host's address
//! ```
//!
//! What goes to a sandbox is an answer, or dropped; over a link that is cut (the set `cut`) goes
//! nothing, from the host itself neither. A device that no rule knows reaches nothing,
//! so the rules may come after the device. Devices of the host that forward for sandboxes only
//! ([`super::doors`]) forward for nobody else: the set `doors`. Every change is one transaction.
//!
//! ```text
//!               a server runs                              no server runs
//!   no sandbox  the table, without doors                   nothing
//!   sandboxes   the table with doors, a chain for each     the same
//! ```

use std::{
    fs::File,
    io::{self, Write as _},
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
};

use outlive_api::launch::{Egress, Link, WayOut};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use super::{
    doors::Doors,
    served::{Served, is_served},
    tables,
    text::{MARK, SHARED, TABLE, admission, chain_rules, dismissal, door_rules, link_rules, push},
};
use crate::log;

/// The program that speaks for nftables.
const NFT: &str = "nft";
/// Where it may lie; a server's own path often has no `sbin`.
const PATH_OF_ROOT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Whoever changes the rules holds it: a transaction fails when another one comes in between. Which
/// doors were opened is written in it.
const LOCK: &str = "/run/outlive-network.lock";
/// The name of a table that is made and removed in one step.
const TABLE_TRIED: &str = "inet outlive_probe";
/// The network devices that there are, one a line, its name before a colon.
const DEVICES: &str = "/proc/net/dev";
/// All devices of sandboxes begin like this, and nobody else's.
pub(super) const DEVICE_PREFIX: &str = "olv";

/// What a sandbox is to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) egress: Egress,
    pub(super) link: Link,
}

impl From<&WayOut> for Reach {
    fn from(way_out: &WayOut) -> Self {
        Self {
            egress: way_out.egress.clone(),
            link: way_out.link,
        }
    }
}

/// A sandbox as the rules know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) device: String,
    pub(super) address: Ipv4Addr,
}

/// The rules, while nobody else changes them.
#[derive(Debug)]
pub(super) struct Rules {
    doors: Doors,
}

impl Rules {
    /// Waits until nobody else changes them.
    pub(super) fn lock() -> io::Result<Self> {
        let file = lock_file()?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self {
            doors: Doors::noted_in(file)?,
        })
    }

    /// From now on a server runs. What all share is there once it is written for it.
    pub(super) fn serve(&self) -> io::Result<Served> {
        Served::begin(lock_file()?, self.doors.namespace())
    }

    /// Lets sandboxes out, and has them reach what is said; those that are out, too.
    pub(super) fn admit(&mut self, sandboxes: &[(Admitted, Reach)]) -> io::Result<()> {
        let mut text = String::new();
        for (sandbox, reach) in sandboxes {
            text.push_str(&admission(sandbox));
            text.push_str(&link_rules(&sandbox.device, reach.link));
            text.push_str(&chain_rules(&sandbox.device, &reach.egress));
        }
        self.doors.choose()?;
        let change = self.change(&text, None)?;
        let devices = sandboxes.iter().map(|(sandbox, _)| sandbox.device.clone());
        self.finish(Admission {
            devices: devices.collect(),
            change: Some(change),
        })
    }

    /// Lets a sandbox out that no rule knows; waits for nothing, it is done with [`Self::finish`].
    ///
    /// Nothing is removed in the same transaction, as [`Self::admit`] does to be right whatever was
    /// there: whoever removes waits for a grace period of the whole kernel, some 10 ms.
    pub(super) fn begin_anew(
        &mut self,
        sandbox: &Admitted,
        reach: &Reach,
    ) -> io::Result<Admission> {
        self.doors.choose()?;
        let change = if self.admits_at_once(sandbox, reach) {
            None
        } else {
            let mut text = admission(sandbox);
            match reach.link {
                Link::Cut => text.push_str(&link_rules(&sandbox.device, Link::Cut)),
                Link::Open => {} // As it is without a rule.
            }
            text.push_str(&chain_rules(&sandbox.device, &reach.egress));
            Some(self.change(&text, None)?)
        };
        Ok(Admission {
            devices: vec![sandbox.device.clone()],
            change,
        })
    }

    /// Lets a sandbox out without the program. What it can't do, and what fails, is for that.
    fn admits_at_once(&self, sandbox: &Admitted, reach: &Reach) -> bool {
        reach.egress.rules.is_empty()
            && is_done(tables::admit(
                &mark(),
                &self.doors,
                sandbox,
                reach.link,
                reach.egress.default,
            ))
    }

    /// Waits until an admission holds.
    pub(super) fn finish(&mut self, admission: Admission) -> io::Result<()> {
        if let Some(change) = admission.change {
            change.carry_through()?;
        }
        self.doors.settle()?;
        for device in &admission.devices {
            self.doors.forward(device)?;
        }
        self.doors.open()
    }

    /// Forgets sandboxes; one that is unknown is forgotten, too. With the last one go the doors,
    /// and the table where no server runs.
    pub(super) fn forget(&mut self, sandboxes: &[Admitted]) -> io::Result<()> {
        let others = are_others(sandboxes)?;
        if !others {
            self.doors.close()?;
        }
        let shared = if others || is_served(self.doors.file(), self.doors.namespace())? {
            Shared::Stays
        } else {
            Shared::GoesWithTheLast
        };
        if !self.forgets_at_once(sandboxes, shared) {
            self.forget_by_program(sandboxes, shared)?;
        }
        self.doors.settle()
    }

    /// Forgets a sandbox without the program, where no more than that is to go.
    fn forgets_at_once(&self, sandboxes: &[Admitted], shared: Shared) -> bool {
        match (sandboxes, shared) {
            ([sandbox], Shared::Stays) => is_done(tables::forget(&mark(), &self.doors, sandbox)),
            (_, Shared::Stays | Shared::GoesWithTheLast) => false,
        }
    }

    fn forget_by_program(&self, sandboxes: &[Admitted], shared: Shared) -> io::Result<()> {
        if shared == Shared::Stays && sandboxes.is_empty() && self.doors.dropped().next().is_none()
        {
            return Ok(());
        }
        let mut text = String::new();
        for sandbox in sandboxes {
            // What is added is there for sure and can be removed, in the same transaction.
            text.push_str(&admission(sandbox));
            text.push_str(&link_rules(&sandbox.device, Link::Open));
            text.push_str(&dismissal(sandbox));
        }
        let known = self.change_and_list(&text)?;
        match shared {
            Shared::Stays => Ok(()),
            Shared::GoesWithTheLast if known.iter().any(|known| !sandboxes.contains(known)) => {
                Ok(())
            }
            Shared::GoesWithTheLast => run(&format!(
                "delete table {TABLE}\nadd table {MARK}\ndelete table {MARK}\n"
            )),
        }
    }

    /// Those that are out. What all share is there afterwards.
    pub(super) fn admitted(&self) -> io::Result<Vec<Admitted>> {
        self.change_and_list("")
    }

    /// Carries out a change; those that were out before it, or are after it.
    fn change_and_list(&self, text: &str) -> io::Result<Vec<Admitted>> {
        let change = self.change(text, Some("pairs"))?;
        let pairs = match change.carry_through()? {
            // One run for both.
            Some(before) => before,
            None => listing("pairs")?,
        };
        elements(&pairs).into_iter().map(read_pair).collect()
    }

    /// Begins a change, where what all sandboxes share is there already; it lists what `set` holds
    /// before it.
    fn change(&self, text: &str, set: Option<&str>) -> io::Result<Change> {
        // Fails where there is no such chain, and changes nothing where there is.
        let text = door_rules(&self.doors) + text;
        let mut guarded = format!("flush chain {MARK} {}\n{text}", mark());
        if let Some(set) = set {
            push(&mut guarded, &format!("list set {TABLE} {set}"));
        }
        Ok(Change {
            nft: start(&["-f", "-"], &guarded)?,
            text,
        })
    }
}

/// What becomes of what all sandboxes share when some of them are forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Stays,
    GoesWithTheLast,
}

fn lock_file() -> io::Result<File> {
    let file = open(
        LOCK,
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o600),
    )?;
    Ok(file.into())
}

/// What all sandboxes share, doors apart, with its mark.
fn shared() -> String {
    let mut text = SHARED.to_owned();
    for line in [
        format!("add table {MARK}"),
        format!("delete table {MARK}"),
        format!("add table {MARK}"),
        format!("add chain {MARK} {}", mark()),
    ] {
        push(&mut text, &line);
    }
    text
}

fn mark() -> String {
    format!("of_{:016x}", fingerprint(SHARED))
}

/// Whether a change was carried out by hand, or is for the program.
fn is_done(tried: io::Result<()>) -> bool {
    match tried {
        Ok(()) => true,
        // What all sandboxes share is not there, as at the first.
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            log::warn(format_args!("rules are written by `{NFT}`: {error}"));
            false
        }
    }
}

/// Whether there are devices of other sandboxes.
fn are_others(sandboxes: &[Admitted]) -> io::Result<bool> {
    let devices = std::fs::read_to_string(DEVICES)?;
    let mut names = devices.lines().filter_map(|line| line.split_once(':'));
    Ok(names.any(|(name, _)| {
        let name = name.trim();
        let is_known = || sandboxes.iter().any(|sandbox| sandbox.device == name);
        name.starts_with(DEVICE_PREFIX) && !is_known()
    }))
}

/// Sandboxes on their way out.
#[derive(Debug)]
#[must_use = "they are out once it is finished"]
pub(super) struct Admission {
    devices: Vec<String>,
    /// What is still under way.
    change: Option<Change>,
}

/// A transaction that is under way.
#[derive(Debug)]
struct Change {
    nft: Child,
    /// What it changes.
    text: String,
}

impl Change {
    /// Waits for its end; what it listed, if it did.
    fn carry_through(self) -> io::Result<Option<String>> {
        if let Ok(listed) = end(self.nft) {
            return Ok(Some(listed));
        }
        // Whatever is wrong besides is told now.
        run(&format!("{}{}", shared(), self.text))?;
        Ok(None)
    }
}

/// FNV-1a. Nobody gains by a collision: who writes the table may write anything.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether the program is there and the kernel knows every kind of rule. Nothing is left of it.
pub(super) fn probe() -> io::Result<()> {
    let _one_at_a_time = Rules::lock()?;
    let mut text = SHARED.replace(TABLE, TABLE_TRIED);
    push(&mut text, &format!("delete table {TABLE_TRIED}"));
    run(&text)
}

/// `"DEVICE" . ADDRESS`, as `nft` lists it.
fn read_pair(element: &str) -> io::Result<Admitted> {
    let pair = element.split_once(" . ").and_then(|(device, address)| {
        Some(Admitted {
            device: device.trim_matches('"').to_owned(),
            address: address.parse().ok()?,
        })
    });
    pair.ok_or_else(|| io::Error::other(format!("`{NFT}` lists {element:?} as a sandbox")))
}

/// What a listing of a set holds.
fn elements(listing: &str) -> Vec<&str> {
    let inner = listing
        .split_once("elements = {")
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or("", |(inner, _)| inner);
    let parts = inner.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Carries out a transaction.
fn run(text: &str) -> io::Result<()> {
    nft(&["-f", "-"], text).map(drop)
}

/// A set of the table, as text.
fn listing(set: &str) -> io::Result<String> {
    nft(&["list", "set", "inet", "outlive", set], "")
}

fn nft(arguments: &[&str], input: &str) -> io::Result<String> {
    end(start(arguments, input)?)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the launcher has no thread beside this one and no gate that could wait"
)]
fn start(arguments: &[&str], input: &str) -> io::Result<Child> {
    let mut child = Command::new(NFT)
        .args(arguments)
        .env("PATH", PATH_OF_ROOT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("running `{NFT}`: {e}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    Ok(child)
}

fn end(nft: Child) -> io::Result<String> {
    let done = nft.wait_with_output()?;
    if done.status.success() {
        return String::from_utf8(done.stdout).map_err(io::Error::other);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.lines().next().unwrap_or("it said nothing");
    Err(io::Error::other(format!("`{NFT}` refused: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_of_many_lines_is_read() {
        let listing = "table inet outlive {\n\tset pairs {\n\t\ttype ifname . ipv4_addr\n\
                       \t\telements = { \"olv1\" . 10.201.0.7,\n\t\t\t     \"olv2\" . \
                       10.201.0.8 }\n\t}\n}\n";
        let pairs: Vec<_> = elements(listing).into_iter().map(read_pair).collect();
        let pairs: io::Result<Vec<_>> = pairs.into_iter().collect();
        let pairs = pairs.unwrap();
        assert_eq!(pairs.len(), 2);
        assert_eq!(pairs[1].device, "olv2");
        assert_eq!(pairs[1].address, Ipv4Addr::new(10, 201, 0, 8));
        assert_eq!(
            elements("table inet outlive {\n\tset pairs {\n\t}\n}\n"),
            [""; 0]
        );
        read_pair("\"olv1\" . nowhere").unwrap_err();
    }
}
