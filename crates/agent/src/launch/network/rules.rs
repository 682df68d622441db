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

use std::{
    io::{self, Write as _},
    net::Ipv4Addr,
    process::{Child, Command, Stdio},
};

use outlive_api::launch::{Egress, EgressRule, Link, Transport, Verdict, WayOut};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use super::doors::Doors;

/// The program that speaks for nftables.
const NFT: &str = "nft";
/// Where it may lie; a server's own path often has no `sbin`.
const PATH_OF_ROOT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Whoever changes the rules holds it: a transaction fails when another one comes in between. Which
/// doors were opened is written in it.
const LOCK: &str = "/run/outlive-network.lock";
/// The name of the table.
const TABLE: &str = "inet outlive";
/// The name of a table that is made and removed in one step.
const TABLE_TRIED: &str = "inet outlive_probe";
/// All devices of sandboxes begin like this, and nobody else's.
pub(super) const DEVICE_PREFIX: &str = "olv";

/// A table whose only chain is named after what all sandboxes share: who finds it there need not
/// write that again. To write a chain anew takes a grace period of the whole kernel, some 10 ms.
const MARK: &str = "inet outlive_mark";

/// Tables, sets and chains that all sandboxes share. Writing them again changes nothing.
///
/// What comes in by a door and is neither for the host nor for many is dropped before it is
/// routed: so a host that forwards for nobody drops it. What another table turned into something
/// else meanwhile is dropped after it. Over a link that is cut the host says nothing but that.
const SHARED: &str = r#"
add table inet outlive
add set inet outlive pairs { type ifname . ipv4_addr; }
add set inet outlive addresses { type ipv4_addr; }
add set inet outlive doors { type ifname; }
add set inet outlive cut { type ifname; }
add map inet outlive egress { type ifname : verdict; }
add chain inet outlive prerouting { type filter hook prerouting priority mangle; policy accept; }
add chain inet outlive forward { type filter hook forward priority filter - 10; policy accept; }
add chain inet outlive output { type filter hook output priority filter - 10; policy accept; }
add chain inet outlive postrouting { type nat hook postrouting priority srcnat; policy accept; }
add chain inet outlive from_sandbox
add chain inet outlive to_sandbox
flush chain inet outlive prerouting
flush chain inet outlive forward
flush chain inet outlive output
flush chain inet outlive postrouting
flush chain inet outlive from_sandbox
flush chain inet outlive to_sandbox
flush set inet outlive doors
add rule inet outlive prerouting iifname @doors meta nfproto ipv4 fib daddr type unicast drop
add rule inet outlive prerouting iifname != "olv*" accept
add rule inet outlive prerouting meta nfproto != ipv4 drop
add rule inet outlive prerouting iifname . ip saddr != @pairs drop
add rule inet outlive prerouting iifname @cut reject with icmpx admin-prohibited
add rule inet outlive prerouting ct state established,related accept
add rule inet outlive prerouting fib daddr type != unicast reject with icmpx admin-prohibited
add rule inet outlive prerouting ip daddr { 127.0.0.0/8, 169.254.0.0/16 } reject with icmpx admin-prohibited
add rule inet outlive forward iifname "olv*" jump from_sandbox
add rule inet outlive forward oifname "olv*" jump to_sandbox
add rule inet outlive forward iifname @doors meta nfproto ipv4 drop
add rule inet outlive from_sandbox oifname "olv*" reject with icmpx admin-prohibited
add rule inet outlive from_sandbox ct direction reply ct state established,related accept
add rule inet outlive from_sandbox iifname vmap @egress
add rule inet outlive from_sandbox drop
add rule inet outlive to_sandbox oifname @cut drop
add rule inet outlive to_sandbox ct state established,related accept
add rule inet outlive to_sandbox drop
add rule inet outlive output oifname @cut icmp type destination-unreachable accept
add rule inet outlive output oifname @cut drop
add rule inet outlive postrouting ip saddr @addresses masquerade
"#;

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
        let file = open(
            LOCK,
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self {
            doors: Doors::noted_in(file.into())?,
        })
    }

    /// Lets sandboxes out, and has them reach what is said; those that are out, too.
    pub(super) fn admit(&mut self, sandboxes: &[(Admitted, Reach)]) -> io::Result<()> {
        let mut text = String::new();
        for (sandbox, reach) in sandboxes {
            text.push_str(&admission(sandbox));
            text.push_str(&link_rules(&sandbox.device, reach.link));
            text.push_str(&chain_rules(&sandbox.device, &reach.egress));
        }
        let devices = sandboxes.iter().map(|(sandbox, _)| sandbox.device.clone());
        let admission = self.begin(devices.collect(), text)?;
        self.finish(admission)
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
        let mut text = admission(sandbox);
        match reach.link {
            Link::Cut => text.push_str(&link_rules(&sandbox.device, Link::Cut)),
            Link::Open => {} // As it is without a rule.
        }
        text.push_str(&chain_rules(&sandbox.device, &reach.egress));
        self.begin(vec![sandbox.device.clone()], text)
    }

    fn begin(&mut self, devices: Vec<String>, text: String) -> io::Result<Admission> {
        // Doors are written down, then ruled, then opened.
        self.doors.choose()?;
        Ok(Admission {
            devices,
            change: self.change(text, None)?,
        })
    }

    /// Waits until an admission holds.
    pub(super) fn finish(&mut self, admission: Admission) -> io::Result<()> {
        self.carry_through(admission.change)?;
        for device in &admission.devices {
            self.doors.forward(device)?;
        }
        self.doors.open()
    }

    /// Forgets sandboxes; one that is unknown is forgotten, too. With the last one go the doors
    /// and the table.
    pub(super) fn forget(&mut self, sandboxes: &[Admitted]) -> io::Result<()> {
        let mut text = String::new();
        for sandbox in sandboxes {
            // What is added is there for sure and can be removed, in the same transaction.
            text.push_str(&admission(sandbox));
            text.push_str(&link_rules(&sandbox.device, Link::Open));
            text.push_str(&dismissal(sandbox));
        }
        let change = self.change(text, Some("pairs"))?;
        let pairs = match self.carry_through(change)? {
            // One run for both: it lists what was there before.
            Some(before) => before,
            None => listing("pairs")?,
        };
        for pair in elements(&pairs) {
            if !sandboxes.contains(&read_pair(pair)?) {
                return Ok(());
            }
        }
        self.doors.close()?;
        run(&format!(
            "delete table {TABLE}\nadd table {MARK}\ndelete table {MARK}\n"
        ))
    }

    /// Those that are out.
    pub(super) fn admitted(&mut self) -> io::Result<Vec<Admitted>> {
        run(&self.shared())?;
        let listing = listing("pairs")?;
        elements(&listing).into_iter().map(read_pair).collect()
    }

    /// Begins a change, where what all sandboxes share is there already; it lists what `set` holds
    /// before it.
    fn change(&self, text: String, set: Option<&str>) -> io::Result<Change> {
        let (_, mark) = self.shared_and_mark();
        // Fails where there is no such chain, and changes nothing where there is.
        let mut guarded = format!("flush chain {MARK} {mark}\n{text}");
        if let Some(set) = set {
            push(&mut guarded, &format!("list set {TABLE} {set}"));
        }
        Ok(Change {
            nft: start(&["-f", "-"], &guarded)?,
            text,
        })
    }

    /// Waits for its end; what it listed, if it did.
    fn carry_through(&self, change: Change) -> io::Result<Option<String>> {
        if let Ok(listed) = end(change.nft) {
            return Ok(Some(listed));
        }
        // Whatever is wrong besides is told now.
        run(&format!("{}{}", self.shared(), change.text))?;
        Ok(None)
    }

    /// What all sandboxes share, and its mark.
    fn shared(&self) -> String {
        let (mut text, mark) = self.shared_and_mark();
        for line in [
            format!("add table {MARK}"),
            format!("delete table {MARK}"),
            format!("add table {MARK}"),
            format!("add chain {MARK} {mark}"),
        ] {
            push(&mut text, &line);
        }
        text
    }

    fn shared_and_mark(&self) -> (String, String) {
        let mut text = SHARED.to_owned();
        for door in self.doors.names() {
            push(
                &mut text,
                &format!("add element {TABLE} doors {{ \"{door}\" }}"),
            );
        }
        let mark = format!("of_{:016x}", fingerprint(&text));
        (text, mark)
    }
}

/// Sandboxes on their way out.
#[derive(Debug)]
#[must_use = "they are out once it is finished"]
pub(super) struct Admission {
    devices: Vec<String>,
    change: Change,
}

/// A transaction that is under way.
#[derive(Debug)]
struct Change {
    nft: Child,
    /// What it changes.
    text: String,
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

fn admission(Admitted { device, address }: &Admitted) -> String {
    format!(
        "add chain {TABLE} {device}\n\
         add element {TABLE} pairs {{ \"{device}\" . {address} }}\n\
         add element {TABLE} addresses {{ {address} }}\n\
         add element {TABLE} egress {{ \"{device}\" : jump {device} }}\n"
    )
}

fn dismissal(Admitted { device, address }: &Admitted) -> String {
    format!(
        "delete element {TABLE} egress {{ \"{device}\" }}\n\
         delete element {TABLE} pairs {{ \"{device}\" . {address} }}\n\
         delete element {TABLE} addresses {{ {address} }}\n\
         flush chain {TABLE} {device}\n\
         delete chain {TABLE} {device}\n"
    )
}

fn link_rules(device: &str, link: Link) -> String {
    let element = format!("element {TABLE} cut {{ \"{device}\" }}\n");
    match link {
        Link::Cut => format!("add {element}"),
        // What is added can be removed, as above.
        Link::Open => format!("add {element}delete {element}"),
    }
}

fn chain_rules(device: &str, egress: &Egress) -> String {
    let mut text = format!("flush chain {TABLE} {device}\n");
    let mut line = |rule: &str| push(&mut text, &format!("add rule {TABLE} {device} {rule}"));
    for rule in &egress.rules {
        line(&format!("{} {}", matching(rule), carried_out(rule.verdict)));
    }
    line(carried_out(egress.default));
    text
}

const fn carried_out(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "accept",
        Verdict::Deny => "reject with icmpx admin-prohibited",
    }
}

fn matching(rule: &EgressRule) -> String {
    let carriers = match rule.transport {
        Transport::Any => "{ tcp, udp }",
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    let to = format!("ip daddr {}", rule.cidr);
    match (rule.ports.is_empty(), rule.transport) {
        (true, Transport::Any) => to,
        (true, Transport::Tcp | Transport::Udp) => format!("{to} meta l4proto {carriers}"),
        (false, _) => {
            let ports = rule.ports.iter();
            let ports: Vec<_> = ports
                .map(|(first, last)| format!("{first}-{last}"))
                .collect();
            let ports = ports.join(", ");
            format!("{to} meta l4proto {carriers} th dport {{ {ports} }}")
        }
    }
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
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
