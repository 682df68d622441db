//! What flags say of a sandbox's settings, as the `config` object of the wire.
//!
//! The wire replaces `resources` and `network` as a whole, a flag names a part of one: so an update
//! takes the rest from what the sandbox shows.

use serde_json::{Map, Value, json};

use crate::{
    args::{
        sandbox::{Egress, Network, SandboxConfig},
        spec::variables,
    },
    config::read_bounded,
    error::{Failure, Result},
};

/// The settings of a sandbox that isn't there yet.
pub(super) fn of_new(config: &SandboxConfig) -> Result<Value> {
    over(config, &Value::Null)
}

/// Whether a flag names a part of what the wire replaces as a whole.
pub(super) fn is_part(config: &SandboxConfig) -> bool {
    !limits(config).is_empty()
        || config.network.is_some()
        || config.egress.is_some()
        || !config.allow.is_empty()
}

/// The flags' settings; what they name in part, completed by what the sandbox `shown` has.
pub(super) fn over(config: &SandboxConfig, shown: &Value) -> Result<Value> {
    if let Some(path) = &config.file {
        return serde_saphyr::from_str(&read_bounded(path)?)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())));
    }
    let mut object = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            object.insert(key.to_owned(), value);
        }
    };
    put("ttl", config.ttl.map(Value::from));
    put("hard_ttl", config.hard_ttl.map(Value::from));
    put("auto_resume", config.auto_resume.map(Value::from));
    let idle = config
        .idle
        .map(|idle| json!({"freeze_after_seconds": idle}));
    put("idle", idle);
    let env = variables(&config.env)?;
    put("env_vars", (!env.is_empty()).then_some(Value::Object(env)));
    put("user", config.user.clone().map(Value::from));
    put("network", network(config, &shown["network"])?);
    let named = limits(config);
    let resources = (!named.is_empty()).then(|| {
        let mut all = shown["resources"].as_object().cloned().unwrap_or_default();
        all.extend(named);
        Value::Object(all)
    });
    put("resources", resources);
    Ok(Value::Object(object))
}

/// The limits that flags name.
fn limits(config: &SandboxConfig) -> Map<String, Value> {
    let limits = [
        ("memory", config.memory.clone().map(Value::from)),
        ("cpu", config.cpu.clone().map(Value::from)),
        ("pids", config.pids.map(Value::from)),
        ("disk", config.disk.clone().map(Value::from)),
    ];
    limits
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

/// The `network` object; the server checks what it says.
fn network(config: &SandboxConfig, shown: &Value) -> Result<Option<Value>> {
    let mut network = Map::new();
    let mode = config.network.map(|mode| mode.as_str().into());
    let changes_egress = config.egress.is_some() || !config.allow.is_empty();
    if mode.is_none() && !changes_egress {
        return Ok(None);
    }
    if let Some(mode) = mode.or_else(|| shown.get("mode").cloned()) {
        network.insert("mode".to_owned(), mode);
    }
    let mut egress = shown["egress"].as_object().cloned().unwrap_or_default();
    if let Some(verdict) = config.egress {
        egress.insert("default".to_owned(), verdict.as_str().into());
    }
    if !config.allow.is_empty() {
        if egress.get("default").and_then(Value::as_str) != Some(Egress::Deny.as_str()) {
            let message = "--allow changes nothing where everything is reached";
            return Err(Failure::usage(message).with_next("add --egress deny"));
        }
        let rules: Vec<Value> = config.allow.iter().map(|rule| rule_json(rule)).collect();
        egress.insert("allow".to_owned(), rules.into());
    }
    if changes_egress || (config.network == Some(Network::Bridge) && !egress.is_empty()) {
        network.insert("egress".to_owned(), Value::Object(egress));
    }
    Ok(Some(Value::Object(network)))
}

/// One `CIDR[:PORTS]`.
fn rule_json(rule: &str) -> Value {
    // An address of IPv6 has colons itself: it is the server's to say that it takes none.
    let address_end = rule.find('/').unwrap_or_default();
    match rule[address_end..].find(':').map(|at| address_end + at) {
        Some(at) => {
            let ports: Vec<&str> = rule[at + 1..].split(',').collect();
            json!({"cidr": rule[..at], "ports": ports})
        }
        None => json!({"cidr": rule}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> Value {
        let rules = json!([{"cidr": "192.0.2.0/24", "ports": ["443"]}]);
        json!({
            "resources": {"memory": "256Mi", "cpu": "1"},
            "network": {"mode": "bridge", "egress": {"default": "deny", "allow": rules}},
        })
    }

    fn flags(network: Option<Network>, egress: Option<Egress>, allow: &[&str]) -> SandboxConfig {
        SandboxConfig {
            network,
            egress,
            allow: allow.iter().map(|&rule| rule.to_owned()).collect(),
            ..SandboxConfig::default()
        }
    }

    // Another address for a sandbox that reaches next to nothing let it reach everything.
    #[test]
    fn a_network_stays_closed_until_it_is_opened_by_name() {
        let after = |flags: &SandboxConfig| over(flags, &closed()).unwrap()["network"].clone();
        let more = after(&flags(None, None, &["10.0.0.0/8"]));
        let egress = json!({"default": "deny", "allow": [{"cidr": "10.0.0.0/8"}]});
        assert_eq!(more, json!({"mode": "bridge", "egress": egress}));
        let same = after(&flags(Some(Network::Bridge), None, &[]));
        assert_eq!(same, closed()["network"]);
        let open = after(&flags(None, Some(Egress::Allow), &[]));
        assert_eq!(open["egress"]["default"], "allow");
        let none = after(&flags(Some(Network::None), None, &[]));
        assert_eq!(none, json!({"mode": "none"}));
    }

    #[test]
    fn a_rule_has_its_ports_behind_its_network() {
        for (rule, wire) in [
            ("10.0.0.0/8", json!({"cidr": "10.0.0.0/8"})),
            (
                "10.0.0.0/8:1,2-3",
                json!({"cidr": "10.0.0.0/8", "ports": ["1", "2-3"]}),
            ),
            (
                "192.0.2.1:443",
                json!({"cidr": "192.0.2.1", "ports": ["443"]}),
            ),
            (
                "fd00::/8:443",
                json!({"cidr": "fd00::/8", "ports": ["443"]}),
            ),
        ] {
            assert_eq!(rule_json(rule), wire);
        }
    }

    // A list of addresses was taken and had no effect.
    #[test]
    fn addresses_are_listed_only_where_others_are_not_reached() {
        for egress in [None, Some(Egress::Allow)] {
            let failure = of_new(&flags(None, egress, &["10.0.0.0/8"])).unwrap_err();
            assert_eq!(failure.code, "usage");
        }
        of_new(&flags(None, Some(Egress::Deny), &["10.0.0.0/8"])).unwrap();
    }
}
