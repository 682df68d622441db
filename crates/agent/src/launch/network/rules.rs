//! The rules of nftables, in the host's namespace, that a sandbox's traffic meets.
//!
//! One table for all servers of this host. What comes from a sandbox meets, in this order:
//!
//! ```text
//!   prerouting   not IPv4, or not its own address: dropped
//!                for the host, for many, for this link: refused
//!   forward      for another sandbox: refused
//!                the sandbox's own chain says yes or no, packet by packet
//!   postrouting  leaves under the host's address
//! ```
//!
//! What goes to a sandbox is an answer, or dropped. A device that no rule knows reaches nothing,
//! so the rules may come after the device. Every change is one transaction.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    net::Ipv4Addr,
    os::fd::OwnedFd,
    process::{Command, Stdio},
};

use outlive_api::launch::{Egress, EgressDefault, EgressRule};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

/// The program that speaks for nftables.
const NFT: &str = "nft";
/// Where it may lie; a server's own path often has no `sbin`.
const PATH_OF_ROOT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Whoever changes the rules holds it: a transaction fails when another one comes in between.
const LOCK: &str = "/run/outlive-network.lock";
/// All devices of sandboxes begin like this, and nobody else's.
pub(super) const DEVICE_PREFIX: &str = "olv";

/// Tables, sets and chains that all sandboxes share; written anew each time, which changes nothing
/// where they are there.
const SHARED: &str = r#"
add table inet outlive
add set inet outlive pairs { type ifname . ipv4_addr; }
add set inet outlive addresses { type ipv4_addr; }
add map inet outlive egress { type ifname : verdict; }
add chain inet outlive prerouting { type filter hook prerouting priority mangle; policy accept; }
add chain inet outlive forward { type filter hook forward priority filter - 10; policy accept; }
add chain inet outlive postrouting { type nat hook postrouting priority srcnat; policy accept; }
add chain inet outlive from_sandbox
add chain inet outlive to_sandbox
flush chain inet outlive prerouting
flush chain inet outlive forward
flush chain inet outlive postrouting
flush chain inet outlive from_sandbox
flush chain inet outlive to_sandbox
add rule inet outlive prerouting iifname != "olv*" accept
add rule inet outlive prerouting meta nfproto != ipv4 drop
add rule inet outlive prerouting iifname . ip saddr != @pairs drop
add rule inet outlive prerouting ct state established,related accept
add rule inet outlive prerouting fib daddr type != unicast reject with icmpx admin-prohibited
add rule inet outlive prerouting ip daddr { 127.0.0.0/8, 169.254.0.0/16 } reject with icmpx admin-prohibited
add rule inet outlive forward iifname "olv*" jump from_sandbox
add rule inet outlive forward oifname "olv*" jump to_sandbox
add rule inet outlive from_sandbox oifname "olv*" reject with icmpx admin-prohibited
add rule inet outlive from_sandbox ct direction reply ct state established,related accept
add rule inet outlive from_sandbox iifname vmap @egress
add rule inet outlive from_sandbox drop
add rule inet outlive to_sandbox ct state established,related accept
add rule inet outlive to_sandbox drop
add rule inet outlive postrouting ip saddr @addresses masquerade
"#;

/// Lets a sandbox out.
pub(super) fn admit(device: &str, address: Ipv4Addr, egress: &Egress) -> io::Result<()> {
    let mut text = SHARED.to_owned();
    text.push_str(&admission(device, address));
    text.push_str(&chain_rules(device, egress));
    run(&text)
}

/// Changes what a sandbox reaches, for what it has open, too.
pub(super) fn change(device: &str, egress: &Egress) -> io::Result<()> {
    run(&chain_rules(device, egress))
}

/// Forgets a sandbox; one that is unknown is forgotten, too.
pub(super) fn forget(device: &str, address: Ipv4Addr) -> io::Result<()> {
    let mut text = SHARED.to_owned();
    // What is added is there for sure and can be removed, in the same transaction.
    text.push_str(&admission(device, address));
    for line in [
        format!("delete element inet outlive egress {{ \"{device}\" }}\n"),
        format!("delete element inet outlive pairs {{ \"{device}\" . {address} }}\n"),
        format!("delete element inet outlive addresses {{ {address} }}\n"),
        format!("flush chain inet outlive {device}\n"),
        format!("delete chain inet outlive {device}\n"),
    ] {
        text.push_str(&line);
    }
    run(&text)
}

/// Whether the program is there and the kernel answers it.
pub(super) fn probe() -> io::Result<()> {
    run("add table inet outlive\n")
}

fn admission(device: &str, address: Ipv4Addr) -> String {
    format!(
        "add chain inet outlive {device}\n\
         add element inet outlive pairs {{ \"{device}\" . {address} }}\n\
         add element inet outlive addresses {{ {address} }}\n\
         add element inet outlive egress {{ \"{device}\" : jump {device} }}\n"
    )
}

fn chain_rules(device: &str, egress: &Egress) -> String {
    let mut text = format!("flush chain inet outlive {device}\n");
    for rule in &egress.allow {
        for what in matches_of(rule) {
            line(&mut text, device, &format!("{what} accept"));
        }
    }
    let verdict = match egress.default {
        EgressDefault::Allow => "accept",
        EgressDefault::Deny => "reject with icmpx admin-prohibited",
    };
    line(&mut text, device, verdict);
    text
}

fn line(text: &mut String, device: &str, rule: &str) {
    match writeln!(text, "add rule inet outlive {device} {rule}") {
        Ok(()) | Err(_) => {} // A string takes everything.
    }
}

fn matches_of(rule: &EgressRule) -> Vec<String> {
    let to = format!("ip daddr {}", rule.cidr);
    if rule.ports.is_empty() {
        return vec![to];
    }
    let ports: Vec<String> = rule
        .ports
        .iter()
        .map(|(first, last)| format!("{first}-{last}"))
        .collect();
    let ports = ports.join(", ");
    vec![format!(
        "{to} meta l4proto {{ tcp, udp }} th dport {{ {ports} }}"
    )]
}

fn lock() -> io::Result<OwnedFd> {
    let file = open(
        LOCK,
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o600),
    )?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the launcher has no thread beside this one and no gate that could wait"
)]
fn run(text: &str) -> io::Result<()> {
    let _one_at_a_time = lock()?;
    let mut child = Command::new(NFT)
        .args(["-f", "-"])
        .env("PATH", PATH_OF_ROOT)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("running `{NFT}`: {e}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.lines().next().unwrap_or("it said nothing");
    Err(io::Error::other(format!("`{NFT}` refused: {said}")))
}
