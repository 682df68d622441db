//! What of a sandbox takes more than a word.

use serde_json::Value;

use crate::output::text;

/// Its status; and that it sleeps, which the dialect calls `running`, too.
pub(super) fn status(sandbox: &Value) -> String {
    let mut status = text(&sandbox["status"]);
    if let Some(state @ ("freezing" | "frozen" | "thawing")) = sandbox["state"].as_str() {
        status = format!("{status} ({state})");
    }
    if sandbox["runtime"]["silent"] == true {
        status.push_str(", but its supervisor does not answer");
    }
    status
}

/// Its network: the mode, whether another one still holds, and what a bridge lets out.
pub(super) fn network(network: &Value) -> String {
    let mut told = text(&network["mode"]);
    if let Some(now) = network["in_force"].as_str() {
        told = format!("{told} from the next start on, {now} until then");
    }
    let egress = &network["egress"];
    if egress["default"] == "deny" {
        told.push_str(", reaches nothing");
        let rules: Vec<String> = egress["allow"]
            .as_array()
            .into_iter()
            .flatten()
            .map(rule)
            .collect();
        if !rules.is_empty() {
            told = format!("{told} but {}", rules.join(" "));
        }
    }
    if let Some(mode) = network["policy"]["mode"].as_str() {
        told = format!("{told}, policy {}", crate::event::escaped(mode));
    }
    told
}

/// As `--allow` takes it.
fn rule(rule: &Value) -> String {
    let ports: Vec<String> = rule["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(text)
        .collect();
    let cidr = text(&rule["cidr"]);
    if ports.is_empty() {
        cidr
    } else {
        format!("{cidr}:{}", ports.join(","))
    }
}

/// Its limits, by the names of their flags.
pub(super) fn limits(resources: &Value) -> String {
    let limits = ["memory", "cpu", "pids", "disk"].map(|name| (name, text(&resources[name])));
    let told: Vec<String> = limits
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    told.join(", ")
}

/// How full its disk is, where that has a limit.
pub(super) fn disk(disk: &Value) -> String {
    let Some(used) = disk["used_bytes"].as_u64() else {
        return String::new();
    };
    let full = if disk["full"] == true { ": full" } else { "" };
    let used = indicatif::HumanBytes(used);
    format!("{used} of {}{full}", text(&disk["limit"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_takes_more_than_a_word_is_told_in_a_line() {
        let sleeps = json!({"status": "running", "state": "frozen"});
        assert_eq!(status(&sleeps), "running (frozen)");
        let paused = json!({"status": "paused", "state": "released"});
        assert_eq!(status(&paused), "paused");

        let open = json!({"mode": "bridge", "egress": {"default": "allow"}});
        assert_eq!(network(&open), "bridge");
        let rules = json!([{"cidr": "192.0.2.1"}, {"cidr": "10.0.0.0/8", "ports": [443, "1-9"]}]);
        let closed = json!({"mode": "bridge", "egress": {"default": "deny", "allow": rules}});
        assert_eq!(
            network(&closed),
            "bridge, reaches nothing but 192.0.2.1 10.0.0.0/8:443,1-9"
        );
        let changed = json!({"mode": "none", "in_force": "host"});
        assert_eq!(
            network(&changed),
            "none from the next start on, host until then"
        );

        let few = json!({"memory": "512Mi", "pids": 9});
        assert_eq!(limits(&few), "memory 512Mi, pids 9");
        let full = json!({"limit": "16Mi", "used_bytes": 17 << 20, "full": true});
        assert_eq!(disk(&full), "17.00 MiB of 16Mi: full");
        assert_eq!(disk(&json!(null)), "");
    }
}
