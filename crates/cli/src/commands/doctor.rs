//! `outlive doctor`: what this machine can do for sandboxes, and what is therefore off.
//!
//! The agent tries everything out (`outlive-agent probe`) and prints one `key=value` a line; this
//! module says what the answers mean. Only a machine where nothing can run is a failure: without
//! isolation, the runtime `process` is left.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    args::{Format, serve::Doctor},
    config::default_data_dir,
    error::{Failure, Result},
    limits::PROBE_MAX,
    output::{fields, print},
};

/// What is looked at, in the order of the report: key, and what it is for.
const LOOKED_AT: [(&str, &str); 12] = [
    ("userns", "user namespaces"),
    ("two_uid", "a user each for agent and commands"),
    ("cgroup2", "freeze and kill as a whole"),
    ("cgroup.memory", "memory limits"),
    ("cgroup.pids", "process limits"),
    ("cgroup.cpu", "CPU limits"),
    ("splice_pty", "terminals: output moved in the kernel"),
    ("pidfd_exit", "exit codes after somebody else reaped"),
    ("idmap_usr", "idmapped mounts"),
    ("landlock", "no tracing of the agent, nor signals to it"),
    ("bridge", "networks of their own for sandboxes"),
    ("disk_quota", "disk limits by the file system"),
];

/// Prints the report.
pub async fn run(args: &Doctor, format: Format) -> Result<()> {
    let agent = agent(args.agent.as_deref())?;
    let data = args.data.clone().or_else(default_data_dir);
    let report = report(&probe(&agent, data.as_deref()).await?, &agent);
    print(format, &report, people)
}

/// The agent's program: the one named, else the one beside this program.
pub(crate) fn agent(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()
            .map_err(|error| Failure::new("doctor", format!("find this program: {error}")))?
            .with_file_name("outlive-agent"),
    };
    if path.is_file() {
        Ok(path)
    } else {
        Err(Failure::new("no_agent", format!("{} does not exist", path.display())).with_next(
            "nothing can run without it: build it with `cargo build --release`, or name it with \
             --agent or OUTLIVE_AGENT",
        ))
    }
}

/// Has the agent look at this machine, and at where a server keeps its data: its answers, one key
/// may come several times.
pub(crate) async fn probe(agent: &Path, data: Option<&Path>) -> Result<Vec<(String, String)>> {
    let run = Command::new(agent)
        .arg("probe")
        .args(data)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let limit: Duration = PROBE_MAX;
    let output = tokio::time::timeout(limit, run)
        .await
        .map_err(|_| Failure::new("no_agent", "the probe did not end"))?
        .map_err(|error| Failure::file("run", agent, &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let message = format!("the probe failed ({}): {}", output.status, said.trim());
        return Err(Failure::new("no_agent", message));
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

fn report(found: &[(String, String)], agent: &Path) -> Value {
    let value = |wanted: &str| {
        found
            .iter()
            .find(|(key, _)| key == wanted)
            .map_or("unknown", |(_, value)| value)
    };
    let works = |key: &str| !matches!(value(key), "unknown") && !value(key).starts_with("no:");
    let off: Vec<&str> = found
        .iter()
        .filter(|(key, _)| key == "off")
        .map(|(_, value)| value.as_str())
        .collect();
    let looked_at: serde_json::Map<String, Value> = LOOKED_AT
        .iter()
        .map(|(key, purpose)| {
            let told = value(key);
            let mut looked = json!({"works": works(key), "found": told, "for": purpose});
            if let Some(next) = remedy(key, told) {
                looked["next"] = next.into();
            }
            ((*key).to_owned(), looked)
        })
        .collect();
    let isolation = value("isolation");
    let mut runtimes = vec!["process"];
    let mut tiers = vec!["none"];
    for (key, runtime, tier) in [
        ("two_uid", "two-uid", "two-uid"),
        ("userns", "namespace", "nested"),
    ] {
        if works(key) {
            runtimes.insert(0, runtime);
            tiers.insert(0, tier);
        }
    }
    let weaker = |tier: &str| -> Vec<&str> {
        let told = found.iter().filter(|(key, _)| key == "weaker");
        told.filter_map(|(_, value)| value.strip_prefix(tier)?.strip_prefix(": "))
            .collect()
    };
    let tiers: Vec<Value> = tiers
        .iter()
        .map(|tier| json!({"tier": tier, "weaker": weaker(tier)}))
        .collect();
    json!({
        "agent": agent.display().to_string(),
        "isolation": isolation,
        "journal_protected": value("journal_protected") == "true",
        "runtimes": runtimes,
        "tiers": tiers,
        "looked_at": looked_at,
        "off": off,
    })
}

/// What to do about it, where that is one command.
fn remedy(key: &str, found: &str) -> Option<String> {
    let is = |words: &str| found.contains(words);
    let command = if is("`nft`") {
        "apt-get install nftables"
    } else if is("`newuidmap`") || is("`newgidmap`") {
        "apt-get install uidmap"
    } else if is("grants this user none") {
        "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 \"$USER\""
    } else if key.starts_with("cgroup") && (is("Permission denied") || is("not delegated")) {
        "systemd-run --user -p Delegate=yes outlive serve"
    } else {
        let (_, folder) = found.split_once("quotas are off on the btrfs of ")?;
        return Some(format!("sudo btrfs quota enable '{folder}'"));
    };
    Some(command.to_owned())
}

fn people(report: &Value) -> String {
    let isolation = match report["isolation"].as_str() {
        Some("nested") => "nested: a sandbox's root reaches neither the host nor its own journal",
        Some("two-uid") => "two-uid: no namespaces, the agent under another user",
        Some("none") => "none: commands run as this user and can do what this user can",
        _ => "unknown",
    };
    let runtimes: Vec<String> = report["runtimes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(crate::output::text)
        .collect();
    let mut out = fields(&[
        ("agent", crate::output::text(&report["agent"])),
        ("isolation", isolation.to_owned()),
        (
            "journal protected",
            crate::output::text(&report["journal_protected"]),
        ),
        ("runtimes", runtimes.join(", ")),
    ]);
    out.push('\n');
    let lines: Vec<(&str, String)> = LOOKED_AT
        .iter()
        .map(|(key, purpose)| {
            let found = &report["looked_at"][*key];
            let word = if found["works"] == true { "yes" } else { "no " };
            (*purpose, format!("{word}  {}", detail(&found["found"])))
        })
        .collect();
    out.push_str(&fields(&lines));
    out.push_str(&remedies(report));
    for tier in report["tiers"].as_array().into_iter().flatten() {
        let weaker: Vec<String> = tier["weaker"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|sentence| format!("  {}\n", crate::output::text(sentence)))
            .collect();
        if !weaker.is_empty() {
            let name = crate::output::text(&tier["tier"]);
            out.extend(["\nWeaker in the tier ", &name, ":\n", &weaker.concat()]);
        }
    }
    let off: Vec<String> = report["off"]
        .as_array()
        .into_iter()
        .flatten()
        .map(crate::output::text)
        .collect();
    out.push_str(if off.is_empty() {
        "\nNothing is off.\n"
    } else {
        "\nTherefore off:\n"
    });
    for sentence in off {
        out.extend(["  ", &sentence, "\n"]);
    }
    out
}

/// The commands that would help, each once.
fn remedies(report: &Value) -> String {
    let mut commands: Vec<&str> = Vec::new();
    for (key, _) in &LOOKED_AT {
        if let Some(next) = report["looked_at"][*key]["next"].as_str()
            && !commands.contains(&next)
        {
            commands.push(next);
        }
    }
    if commands.is_empty() {
        return String::new();
    }
    let lines = commands.iter().map(|command| format!("  {command}\n"));
    format!(
        "\nWhat would help; a server that runs looks again when it is started again:\n{}",
        lines.collect::<String>()
    )
}

/// What was found, without what the word before it said already.
fn detail(found: &Value) -> String {
    let text = crate::output::text(found);
    match text.strip_prefix("no:") {
        Some(reason) => reason.trim().to_owned(),
        None if text == "ok" => String::new(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{Path, parse, people, report};

    #[test]
    fn a_machine_without_isolation_still_runs_something_and_says_what_is_off() {
        let text = "isolation=none\njournal_protected=false\nuserns=no: not permitted\n\
                    cgroup.memory=v1 /sys/fs/cgroup/memory\nsplice_pty=ok\n\
                    off=isolation: a=b\noff=limit of pids\n";
        let report = report(&parse(text), Path::new("/bin/agent"));
        assert_eq!(report["runtimes"], serde_json::json!(["process"]));
        assert_eq!(report["looked_at"]["userns"]["works"], false);
        assert_eq!(report["looked_at"]["cgroup.memory"]["works"], true);
        assert_eq!(report["looked_at"]["idmap_usr"]["works"], false);
        let told = people(&report);
        assert!(told.contains("no   not permitted"), "{told}");
        assert!(
            told.contains("Therefore off:\n  isolation: a=b\n  limit of pids\n"),
            "{told}"
        );
    }

    #[test]
    fn what_one_command_would_mend_comes_with_it() {
        let text = "userns=enter: 1 id: `newuidmap` is not installed\nbridge=no: running `nft`: No such file\n\
                    cgroup2=no: Permission denied (os error 13)\n\
                    cgroup.memory=no: not delegated to us\ncgroup.pids=v2\n\
                    landlock=no: Permission denied (os error 13)\n";
        let report = report(&parse(text), Path::new("a"));
        let told = people(&report);
        for command in [
            "apt-get install uidmap",
            "apt-get install nftables",
            "Delegate=yes",
        ] {
            assert_eq!(told.matches(command).count(), 1, "{told}");
        }
        assert_eq!(
            report["looked_at"]["bridge"]["next"],
            "apt-get install nftables"
        );
        assert_eq!(report["looked_at"]["landlock"].get("next"), None);
    }

    #[test]
    fn a_disk_that_could_be_counted_is_told_how() {
        let told = |found: &str| {
            let text = format!("isolation=nested\ndisk_quota={found}\n");
            people(&report(&parse(&text), Path::new("a")))
        };
        let off = told("no: quotas are off on the btrfs of /srv/my data");
        assert!(off.contains("btrfs quota enable '/srv/my data'"), "{off}");
        assert!(!told("btrfs 0-1").contains("quota enable"));
        assert!(!told("no: not on btrfs").contains("quota enable"));
    }

    #[test]
    fn a_machine_that_can_everything_has_nothing_off() {
        let text = "isolation=nested\njournal_protected=true\nuserns=root\ntwo_uid=ok\n\
                    weaker=two-uid: isolation: the host is in sight\n";
        let report = report(&parse(text), Path::new("a"));
        assert_eq!(
            report["runtimes"],
            serde_json::json!(["namespace", "two-uid", "process"])
        );
        assert_eq!(report["tiers"][0]["weaker"], serde_json::json!([]));
        assert_eq!(report["journal_protected"], true);
        let told = people(&report);
        assert!(told.contains("Nothing is off."), "{told}");
        assert!(
            told.contains("Weaker in the tier two-uid:\n  isolation:"),
            "{told}"
        );
    }
}
