//! The policy of the vendor's clients, as rules about addresses: what can be kept by those is, and
//! what can't is refused by name.
//!
//! ```text
//!   trafficRules        the first that matches counts; what a rule leaves out matches everything
//!   allowedCidrs/Ports  with block-all: reached is what both lists let through
//!   deniedCidrs/Ports   with allow-all: not reached is what either list names
//!   names, secrets, proxies, rules about requests     refused: a packet doesn't show them
//! ```

use std::net::{IpAddr, Ipv6Addr};

use outlive_api::{
    error::{ApiError, ErrorCode},
    launch::{self, Cidr, EgressRule, Transport, Verdict},
    network::{Egress, EgressDefault, Ports},
    policy::{NetworkPolicy, PolicyEgress, PolicyMode, PortSpec, TrafficAction, TrafficRule},
};

use crate::limits::{EGRESS_PORTS_MAX, EGRESS_RULES_MAX};

/// Everything.
const ANYWHERE: &str = "0.0.0.0/0";

/// The rules as the launcher takes them.
pub(super) fn translate(policy: &NetworkPolicy) -> Result<launch::Egress, ApiError> {
    if holds(policy.credential_bindings.as_deref()) {
        return Err(unsupported("credentialBindings", NO_SECRETS));
    }
    let nothing = PolicyEgress::default();
    let egress = policy.egress.as_ref().unwrap_or(&nothing);
    refuse_more_than_addresses(egress)?;
    let rules = match &egress.traffic_rules {
        Some(rules) if !rules.is_empty() => {
            if has_lists(egress) {
                return Err(ApiError::bad_request(LISTS_APART));
            }
            let rules = rules.iter().enumerate().map(|(at, rule)| of_rule(at, rule));
            rules.collect::<Result<Vec<_>, _>>()?.concat()
        }
        Some(_) | None => of_lists(policy.mode, egress)?,
    };
    if rules.len() > EGRESS_RULES_MAX {
        return Err(ApiError::bad_request(format!(
            "network.egress comes to more than {EGRESS_RULES_MAX} rules, one for each network and \
             protocol"
        )));
    }
    Ok(launch::Egress {
        default: match policy.mode {
            PolicyMode::AllowAll => Verdict::Allow,
            PolicyMode::BlockAll => Verdict::Deny,
        },
        rules,
    })
}

/// What a sandbox with rules of ours reaches, in the words of the vendor's clients.
pub(super) fn of_egress(egress: &Egress) -> NetworkPolicy {
    let rules: Vec<_> = egress.allow.iter().map(shown_rule).collect();
    NetworkPolicy {
        egress: (!rules.is_empty()).then(|| PolicyEgress {
            traffic_rules: Some(rules),
            ..PolicyEgress::default()
        }),
        ..plain(match egress.default {
            EgressDefault::Allow => PolicyMode::AllowAll,
            EgressDefault::Deny => PolicyMode::BlockAll,
        })
    }
}

/// A policy without rules.
pub(super) const fn plain(mode: PolicyMode) -> NetworkPolicy {
    NetworkPolicy {
        mode,
        egress: None,
        credential_bindings: None,
    }
}

fn shown_rule(rule: &outlive_api::network::EgressRule) -> TrafficRule {
    let bounds = rule.ports.iter().filter_map(Ports::bounds);
    let ports: Vec<_> = bounds
        .map(|(first, last)| PortSpec {
            port: first.into(),
            end_port: (last > first).then(|| last.into()),
            protocol: None,
        })
        .collect();
    TrafficRule {
        name: None,
        action: TrafficAction::Allow,
        cidrs: Some(vec![rule.cidr.clone()]),
        domains: None,
        ports: (!ports.is_empty()).then_some(ports),
        app_protocols: None,
    }
}

/// Names and requests are not seen by what looks at packets.
fn refuse_more_than_addresses(egress: &PolicyEgress) -> Result<(), ApiError> {
    let proxy = egress.proxy.as_ref().is_some_and(|proxy| !proxy.is_null());
    for (name, is_there, why) in [
        (
            "allowedDomains",
            holds(egress.allowed_domains.as_deref()),
            NO_NAMES,
        ),
        (
            "deniedDomains",
            holds(egress.denied_domains.as_deref()),
            NO_NAMES,
        ),
        (
            "credentialRules",
            holds(egress.credential_rules.as_deref()),
            NO_SECRETS,
        ),
        (
            "protocolRules",
            holds(egress.protocol_rules.as_deref()),
            "requests are not looked into",
        ),
        ("proxy", proxy, "traffic is not led through proxies"),
    ] {
        if is_there {
            return Err(unsupported(&format!("egress.{name}"), why));
        }
    }
    Ok(())
}

const LISTS_APART: &str =
    "network.egress: trafficRules and the lists of allowed and denied are not to be combined";
const NO_SECRETS: &str = "secrets are not put into traffic";
const NO_NAMES: &str = "names can't be told from packets; name networks (cidrs) instead";

/// Whether a list is there and not empty.
fn holds<T>(list: Option<&[T]>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

fn has_lists(egress: &PolicyEgress) -> bool {
    holds(egress.allowed_cidrs.as_deref())
        || holds(egress.denied_cidrs.as_deref())
        || holds(egress.allowed_ports.as_deref())
        || holds(egress.denied_ports.as_deref())
}

fn of_rule(at: usize, rule: &TrafficRule) -> Result<Vec<EgressRule>, ApiError> {
    let name = format!("egress.trafficRules[{at}]");
    if holds(rule.domains.as_deref()) {
        return Err(unsupported(&format!("{name}.domains"), NO_NAMES));
    }
    if holds(rule.app_protocols.as_deref()) {
        return Err(unsupported(
            &format!("{name}.appProtocols"),
            "what is spoken can't be told from packets; name ports instead",
        ));
    }
    let verdict = match rule.action {
        TrafficAction::Allow => Verdict::Allow,
        TrafficAction::Deny => Verdict::Deny,
    };
    let cidrs = networks(&format!("{name}.cidrs"), rule.cidrs.as_deref(), verdict)?;
    let ports = ports(&format!("{name}.ports"), rule.ports.as_deref())?;
    Ok(rules(&cidrs, &ports, verdict))
}

fn of_lists(mode: PolicyMode, egress: &PolicyEgress) -> Result<Vec<EgressRule>, ApiError> {
    // Those of the other mode count for nothing, and are ports all the same.
    let allowed_ports = ports("egress.allowedPorts", egress.allowed_ports.as_deref())?;
    let denied_ports = ports("egress.deniedPorts", egress.denied_ports.as_deref())?;
    match mode {
        PolicyMode::BlockAll => {
            let cidrs = egress.allowed_cidrs.as_deref();
            if !holds(cidrs) && !holds(egress.allowed_ports.as_deref()) {
                return Ok(Vec::new());
            }
            let cidrs = networks("egress.allowedCidrs", cidrs, Verdict::Allow)?;
            Ok(rules(&cidrs, &allowed_ports, Verdict::Allow))
        }
        PolicyMode::AllowAll => {
            let mut all = Vec::new();
            let cidrs = egress.denied_cidrs.as_deref();
            if holds(cidrs) {
                let cidrs = networks("egress.deniedCidrs", cidrs, Verdict::Deny)?;
                all.extend(rules(&cidrs, &[EVERY_PORT], Verdict::Deny));
            }
            if holds(egress.denied_ports.as_deref()) {
                let anywhere = networks("egress.deniedCidrs", None, Verdict::Deny)?;
                all.extend(rules(&anywhere, &denied_ports, Verdict::Deny));
            }
            Ok(all)
        }
    }
}

/// Ports of one protocol.
type PortsOf = (Transport, Vec<(u16, u16)>);
/// No ports are named.
const EVERY_PORT: PortsOf = (Transport::Any, Vec::new());

fn rules(cidrs: &[Cidr], ports: &[PortsOf], verdict: Verdict) -> Vec<EgressRule> {
    let pairs = cidrs
        .iter()
        .flat_map(|cidr| ports.iter().map(move |of| (cidr, of)));
    pairs
        .map(|(cidr, (transport, ports))| EgressRule {
            cidr: *cidr,
            ports: ports.clone(),
            verdict,
            transport: *transport,
        })
        .collect()
}

/// The networks of a list; everything where none is named.
fn networks(name: &str, list: Option<&[String]>, verdict: Verdict) -> Result<Vec<Cidr>, ApiError> {
    let list = match list {
        Some(list) if !list.is_empty() => list,
        Some(_) | None => &[ANYWHERE.to_owned()],
    };
    let mut found = Vec::new();
    for text in list {
        match network(text) {
            Some(Network::Four(cidr)) => found.push(cidr),
            // There is no IPv6 at all: what is to be refused is.
            Some(Network::Six) if verdict == Verdict::Deny => {}
            Some(Network::Six) => {
                return Err(unsupported(
                    name,
                    "sandboxes have no IPv6; leave its networks out",
                ));
            }
            None => {
                return Err(ApiError::bad_request(format!(
                    "network.{name}: {text:?} is no network such as 192.0.2.0/24"
                )));
            }
        }
    }
    Ok(found)
}

enum Network {
    Four(Cidr),
    Six,
}

/// Read as the vendor's server does: bits beyond the length say nothing.
fn network(text: &str) -> Option<Network> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    match (address.parse().ok()?, bits) {
        (IpAddr::V4(address), bits) => Cidr::around(address, bits.unwrap_or(32)).map(Network::Four),
        (IpAddr::V6(_), bits) => {
            let fits = bits.is_none_or(|bits| u32::from(bits) <= Ipv6Addr::BITS);
            fits.then_some(Network::Six)
        }
    }
}

/// The ports of a list, by protocol; every port where none is named.
fn ports(name: &str, list: Option<&[PortSpec]>) -> Result<Vec<PortsOf>, ApiError> {
    let list = match list {
        Some(list) if !list.is_empty() => list,
        Some(_) | None => return Ok(vec![EVERY_PORT]),
    };
    if list.len() > EGRESS_PORTS_MAX {
        return Err(ApiError::bad_request(format!(
            "network.{name} has more than {EGRESS_PORTS_MAX} ports"
        )));
    }
    let mut by_transport = std::collections::BTreeMap::<Transport, Vec<(u16, u16)>>::new();
    for spec in list {
        let transport = match spec.protocol.as_deref().unwrap_or_default() {
            "" => Transport::Any,
            word if word.eq_ignore_ascii_case("tcp") => Transport::Tcp,
            word if word.eq_ignore_ascii_case("udp") => Transport::Udp,
            word => {
                return Err(unsupported(
                    name,
                    &format!("{word:?} has no ports; use tcp or udp"),
                ));
            }
        };
        let port = |number: i32| u16::try_from(number).ok().filter(|port| *port > 0);
        let bounds = port(spec.port).zip(port(spec.end_port.unwrap_or(spec.port)));
        let Some((first, last)) = bounds.filter(|(first, last)| first <= last) else {
            return Err(ApiError::bad_request(format!(
                "network.{name}: ports are 1 to 65535, the first one first"
            )));
        };
        by_transport
            .entry(transport)
            .or_default()
            .push((first, last));
    }
    let joined = by_transport.into_iter();
    Ok(joined
        .map(|(transport, ports)| (transport, super::joined(ports)))
        .collect())
}

fn unsupported(name: &str, why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Unsupported,
        format!("network.{name} can't be enforced: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<launch::Egress, ApiError> {
        translate(&serde_json::from_str(text).unwrap())
    }

    fn shown(text: &str) -> Vec<String> {
        let egress = read(text).unwrap();
        let rules = egress.rules.iter().map(|rule| {
            let EgressRule {
                cidr,
                ports,
                verdict,
                transport,
            } = rule;
            format!("{verdict:?} {cidr} {transport:?} {ports:?}")
        });
        rules.chain([format!("{:?}", egress.default)]).collect()
    }

    #[test]
    fn rules_keep_their_order_and_what_they_leave_out_is_everything() {
        let text = r#"{"mode": "block-all", "egress": {"trafficRules": [
            {"name": "not there", "action": "deny", "cidrs": ["192.0.2.7/32", "2001:db8::/32"]},
            {"action": "allow", "cidrs": ["192.0.2.9/24"],
             "ports": [{"port": 443, "protocol": "TCP"}, {"port": 8000, "endPort": 8999}]},
            {"action": "allow", "ports": [{"port": 53, "protocol": "udp"}]}]}}"#;
        assert_eq!(
            shown(text),
            [
                "Deny 192.0.2.7/32 Any []",
                "Allow 192.0.2.0/24 Any [(8000, 8999)]",
                "Allow 192.0.2.0/24 Tcp [(443, 443)]",
                "Allow 0.0.0.0/0 Udp [(53, 53)]",
                "Deny",
            ]
        );
    }

    #[test]
    fn a_list_counts_in_its_mode_only() {
        let lists = r#""egress": {"allowedCidrs": ["192.0.2.0/24"], "allowedPorts": [{"port": 443}],
            "deniedCidrs": ["198.51.100.0/24"], "deniedPorts": [{"port": 25}]}"#;
        let blocked = shown(&format!(r#"{{"mode": "block-all", {lists}}}"#));
        assert_eq!(blocked, ["Allow 192.0.2.0/24 Any [(443, 443)]", "Deny"]);
        let allowed = shown(&format!(r#"{{"mode": "allow-all", {lists}}}"#));
        assert_eq!(
            allowed,
            [
                "Deny 198.51.100.0/24 Any []",
                "Deny 0.0.0.0/0 Any [(25, 25)]",
                "Allow"
            ]
        );
        assert_eq!(shown(r#"{"mode": "block-all"}"#), ["Deny"]);
    }

    #[test]
    fn what_a_packet_does_not_show_is_refused_by_name() {
        for (field, named) in [
            (
                r#""egress": {"allowedDomains": ["example.org"]}"#,
                "allowedDomains",
            ),
            (
                r#""egress": {"deniedDomains": ["example.org"]}"#,
                "deniedDomains",
            ),
            (
                r#""egress": {"credentialRules": [{"credentialRef": "x"}]}"#,
                "credentialRules",
            ),
            (
                r#""egress": {"protocolRules": [{"protocol": "mcp"}]}"#,
                "protocolRules",
            ),
            (
                r#""egress": {"proxy": {"type": "socks5", "address": "a:1"}}"#,
                "proxy",
            ),
            (
                r#""credentialBindings": [{"ref": "x"}]"#,
                "credentialBindings",
            ),
            (r#""egress": {"allowedCidrs": ["::/0"]}"#, "allowedCidrs"),
            (
                r#""egress": {"trafficRules": [{"action": "deny", "domains": ["example.org"]}]}"#,
                "trafficRules[0].domains",
            ),
            (
                r#""egress": {"trafficRules": [{"action": "allow", "appProtocols": ["ssh"]}]}"#,
                "trafficRules[0].appProtocols",
            ),
            (
                r#""egress": {"allowedPorts": [{"port": 1, "protocol": "sctp"}]}"#,
                "allowedPorts",
            ),
        ] {
            let error = read(&format!(r#"{{"mode": "block-all", {field}}}"#)).unwrap_err();
            assert_eq!(error.code, ErrorCode::Unsupported, "{field}");
            assert!(error.message.contains(named), "{}", error.message);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for egress in [
            r#"{"allowedCidrs": ["example.org"]}"#,
            r#"{"allowedCidrs": ["192.0.2.0/33"]}"#,
            r#"{"allowedCidrs": ["::/129"]}"#,
            r#"{"allowedPorts": [{"port": 0}]}"#,
            r#"{"allowedPorts": [{"port": 9, "endPort": 8}]}"#,
            r#"{"allowedPorts": [{"port": 70000}]}"#,
            r#"{"allowedCidrs": ["192.0.2.0/24"], "trafficRules": [{"action": "allow"}]}"#,
        ] {
            let error = read(&format!(r#"{{"mode": "block-all", "egress": {egress}}}"#));
            assert_eq!(error.unwrap_err().code, ErrorCode::BadRequest, "{egress}");
        }
        // Also in a list of the other mode.
        for mode in ["allow-all", "block-all"] {
            for list in ["allowedPorts", "deniedPorts"] {
                let egress = format!(r#"{{"{list}": [{{"port": 1, "endPort": 65536}}]}}"#);
                let error = read(&format!(r#"{{"mode": "{mode}", "egress": {egress}}}"#));
                assert_eq!(error.unwrap_err().code, ErrorCode::BadRequest, "{egress}");
            }
        }
    }

    #[test]
    fn rules_of_ours_are_shown_in_the_vendors_words() {
        let ours: Egress = serde_json::from_str(
            r#"{"default": "deny", "allow": [{"cidr": "192.0.2.0/24", "ports": [443, "8000-8999"]}]}"#,
        )
        .unwrap();
        let theirs = serde_json::to_value(of_egress(&ours)).unwrap();
        let expected = r#"{"mode": "block-all", "egress": {"trafficRules": [{"action": "allow",
            "cidrs": ["192.0.2.0/24"], "ports": [{"port": 443}, {"port": 8000, "endPort": 8999}]}]}}"#;
        assert_eq!(
            theirs,
            serde_json::from_str::<serde_json::Value>(expected).unwrap()
        );
    }
}
