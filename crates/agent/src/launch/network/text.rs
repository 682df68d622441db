//! What `nft` is told, word by word.

use outlive_api::launch::{Egress, EgressRule, Link, Transport, Verdict};

use super::{doors::Doors, rules::Admitted};

/// The name of the table.
pub(super) const TABLE: &str = "inet outlive";
/// A table whose only chain is named after what all sandboxes share, doors apart: who finds it
/// there need not write that again. To write a chain anew takes a grace period of the whole kernel,
/// some 10 ms.
pub(super) const MARK: &str = "inet outlive_mark";

/// Tables, sets and chains that all sandboxes share. Writing them again changes nothing.
///
/// What comes in by a door and is neither for the host nor for many is dropped before it is
/// routed: so a host that forwards for nobody drops it. What another table turned into something
/// else meanwhile is dropped after it. Over a link that is cut the host says nothing but that.
pub(super) const SHARED: &str = r#"
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

/// The name of a table without its family.
pub(super) fn in_family(table: &str) -> &str {
    table.rsplit(' ').next().unwrap_or(table)
}

/// Has the set say what the doors are.
pub(super) fn door_rules(doors: &Doors) -> String {
    let mut text = String::new();
    for door in doors.names() {
        push(&mut text, &format!("add {}", door_element(door)));
    }
    for door in doors.dropped() {
        // What is added is there for sure and can be removed, in the same transaction.
        for verb in ["add", "delete"] {
            push(&mut text, &format!("{verb} {}", door_element(door)));
        }
    }
    text
}

fn door_element(door: &str) -> String {
    format!("element {TABLE} doors {{ \"{door}\" }}")
}

pub(super) fn admission(Admitted { device, address }: &Admitted) -> String {
    format!(
        "add chain {TABLE} {device}\n\
         add element {TABLE} pairs {{ \"{device}\" . {address} }}\n\
         add element {TABLE} addresses {{ {address} }}\n\
         add element {TABLE} egress {{ \"{device}\" : jump {device} }}\n"
    )
}

pub(super) fn dismissal(Admitted { device, address }: &Admitted) -> String {
    format!(
        "delete element {TABLE} egress {{ \"{device}\" }}\n\
         delete element {TABLE} pairs {{ \"{device}\" . {address} }}\n\
         delete element {TABLE} addresses {{ {address} }}\n\
         flush chain {TABLE} {device}\n\
         delete chain {TABLE} {device}\n"
    )
}

pub(super) fn link_rules(device: &str, link: Link) -> String {
    let element = format!("element {TABLE} cut {{ \"{device}\" }}\n");
    match link {
        Link::Cut => format!("add {element}"),
        // What is added can be removed, as above.
        Link::Open => format!("add {element}delete {element}"),
    }
}

pub(super) fn chain_rules(device: &str, egress: &Egress) -> String {
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

pub(super) fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}
