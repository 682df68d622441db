//! The network that a sandbox was asked to have: checked once, kept as it was written.

mod policy;

use outlive_api::{
    error::ApiError,
    launch::{self, Transport, Verdict},
    network::{AskedNetwork, Egress, EgressDefault, EgressRule, Network, NetworkMode},
    policy::{NetworkPolicy, PolicyMode},
};

use crate::limits::{EGRESS_PORTS_MAX, EGRESS_RULES_MAX};

/// Checks what a client asks for.
pub(crate) fn check(asked: AskedNetwork) -> Result<Network, ApiError> {
    let asked = Network {
        in_force: None, // What was shown is sent back.
        ..Network::from(asked)
    };
    if asked.egress.is_some() && asked.policy.is_some() {
        return Err(ApiError::bad_request(
            "network: egress and policy say the same in other words; leave out one of the two",
        ));
    }
    let has_rules = asked.egress.is_some() || asked.policy.is_some();
    match asked.mode {
        Some(NetworkMode::None | NetworkMode::Host) if has_rules => Err(ApiError::bad_request(
            "network.egress: only the mode bridge has rules; leave out one of the two",
        )),
        Some(_) | None => rules(&asked).map(|_| asked),
    }
}

/// The rules as the launcher takes them.
pub(crate) fn rules(network: &Network) -> Result<launch::Egress, ApiError> {
    match (&network.policy, &network.egress) {
        (Some(policy), _) => policy::translate(policy),
        (None, Some(egress)) => translate(egress),
        (None, None) => Ok(launch::Egress::default()),
    }
}

/// What it asks for that only a network of the sandbox's own can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: it may as well have no network.
    Nothing,
    /// Nothing, and everything is to be reached.
    Everything,
    /// Rules that are enforced.
    Rules,
}

/// See [`Needs`].
pub(crate) fn needs(network: &Network) -> Needs {
    let rules = rules(network).unwrap_or_default();
    match (&network.policy, network.mode, &network.egress) {
        (_, Some(NetworkMode::Bridge), _) | (_, _, Some(_)) => Needs::Rules,
        (Some(policy), _, _) if rules.rules.is_empty() => match policy.mode {
            PolicyMode::AllowAll => Needs::Everything,
            PolicyMode::BlockAll => Needs::Nothing,
        },
        (Some(_), _, _) => Needs::Rules,
        (None, _, None) => Needs::Nothing,
    }
}

/// What a sandbox reaches that is connected like this, in the words of the vendor's clients.
pub(crate) fn policy_of(network: Option<&Network>, connected: NetworkMode) -> NetworkPolicy {
    let asked = network.and_then(|network| network.policy.clone());
    match (asked, connected) {
        (Some(policy), _) => *policy,
        (None, NetworkMode::None) => policy::plain(PolicyMode::BlockAll),
        (None, NetworkMode::Host) => policy::plain(PolicyMode::AllowAll),
        (None, NetworkMode::Bridge) => {
            let egress = network.and_then(|network| network.egress.clone());
            policy::of_egress(&egress.unwrap_or_default())
        }
    }
}

fn translate(egress: &Egress) -> Result<launch::Egress, ApiError> {
    if egress.allow.len() > EGRESS_RULES_MAX {
        return Err(ApiError::bad_request(format!(
            "network.egress.allow has more than {EGRESS_RULES_MAX} rules"
        )));
    }
    Ok(launch::Egress {
        default: match egress.default {
            EgressDefault::Allow => Verdict::Allow,
            EgressDefault::Deny => Verdict::Deny,
        },
        rules: egress.allow.iter().map(rule).collect::<Result<_, _>>()?,
    })
}

fn rule(rule: &EgressRule) -> Result<launch::EgressRule, ApiError> {
    let cidr = rule.cidr.parse().map_err(|error| {
        ApiError::bad_request(format!("network.egress.allow: {}: {error}", rule.cidr))
    })?;
    if rule.ports.len() > EGRESS_PORTS_MAX {
        return Err(ApiError::bad_request(format!(
            "network.egress.allow: a rule has more than {EGRESS_PORTS_MAX} ports"
        )));
    }
    let ports = rule
        .ports
        .iter()
        .map(|ports| {
            ports.bounds().ok_or_else(|| {
                ApiError::bad_request(
                    "network.egress.allow: ports are numbers from 1 to 65535, or as in 8000-8999",
                )
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(launch::EgressRule {
        cidr,
        ports: joined(ports),
        verdict: Verdict::Allow,
        transport: Transport::Any,
    })
}

/// In order, and none twice: the host's rules take no port twice.
fn joined(mut ports: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ports.sort_unstable();
    ports.dedup_by(|next, before| {
        let joins = next.0 <= before.1;
        if joins {
            before.1 = before.1.max(next.1);
        }
        joins
    });
    ports
}

#[cfg(test)]
mod tests {
    use outlive_api::{error::ErrorCode, network::Ports};

    use super::*;

    fn network(text: &str) -> Result<Network, ApiError> {
        check(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn rules_belong_to_a_bridge() {
        network(r#"{"mode": "bridge", "egress": {"default": "deny"}}"#).unwrap();
        network(r#"{"egress": {"allow": [{"cidr": "192.0.2.0/24"}]}}"#).unwrap();
        network(r#"{"mode": "host", "egress": {}}"#).unwrap_err();
        network(r#"{"mode": "none", "egress": {"default": "deny"}}"#).unwrap_err();
    }

    #[test]
    fn what_is_no_network_or_no_port_is_refused() {
        for rule in [
            r#"{"cidr": "example.org"}"#,
            r#"{"cidr": "192.0.2.1/24"}"#,
            r#"{"cidr": "2001:db8::/32"}"#,
            r#"{"cidr": "192.0.2.0/24", "ports": [0]}"#,
            r#"{"cidr": "192.0.2.0/24", "ports": ["9-8"]}"#,
            r#"{"cidr": "192.0.2.0/24", "ports": ["http"]}"#,
        ] {
            let text = format!(r#"{{"egress": {{"allow": [{rule}]}}}}"#);
            let error = network(&text).expect_err(rule);
            assert_eq!(error.code, ErrorCode::BadRequest);
        }
    }

    #[test]
    fn ports_that_overlap_are_one_range() {
        let egress = Egress {
            default: EgressDefault::Deny,
            allow: vec![EgressRule {
                cidr: "192.0.2.0/24".to_owned(),
                ports: vec![
                    Ports::Range("8000-8999".to_owned()),
                    Ports::One(443),
                    Ports::One(8080),
                    Ports::Range("8999-9001".to_owned()),
                    Ports::One(443),
                ],
            }],
        };
        let rules = translate(&egress).unwrap();
        assert_eq!(rules.rules[0].ports, [(443, 443), (8000, 9001)]);
    }
}
