//! Sandboxes: made, frozen, thawed, replaced, forked, many of them asleep, and found again by the
//! next server.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::{
    Bench,
    idle::{pids_of, share},
    in_turns, real,
};
use crate::{
    floor::{fdatasync_time, program},
    host::{Host, pause},
    report::{Better, Row, median},
};

/// A sandbox until its agent answers, beside namespaces made by `unshare`. It is the only one of its
/// machine, as a user's first one is.
pub(crate) fn create(bench: &Bench<'_>) -> Result<Vec<Row>> {
    if let Some(device) = device_of_a_sandbox()? {
        bail!("another sandbox has a network on this machine: {device}");
    }
    let host = Host::start_empty(bench.scratch)?;
    let each = (40 / bench.shrink).max(5);
    let (ours, floor) = in_turns(
        bench.rounds,
        || {
            let times = (0..each).map(|_| create_and_delete(&host));
            Ok(median(times.collect::<Result<Vec<_>>>()?) * 1e3)
        },
        || {
            let times = (0..each).map(|_| unshare());
            Ok(median(times.collect::<Result<Vec<_>>>()?) * 1e3)
        },
    )?;
    Ok(vec![Row {
        name: "create sandbox → agent ready".to_owned(),
        ours,
        floor,
        unit: "ms",
        against: "`unshare` of the same namespaces + exec",
        bar: 5.0,
        better: Better::Lower,
    }])
}

fn device_of_a_sandbox() -> Result<Option<String>> {
    let devices = fs::read_to_string("/proc/net/dev")?;
    let names = devices.lines().filter_map(|line| line.split_once(':'));
    let mut names = names.map(|(name, _)| name.trim());
    Ok(names
        .find(|name| name.starts_with("olv"))
        .map(str::to_owned))
}

/// What the kernel is left to do after a sandbox was deleted, it does in this time.
const AFTERMATH: Duration = Duration::from_millis(50);

fn create_and_delete(host: &Host) -> Result<f64> {
    pause(AFTERMATH);
    let begun = Instant::now();
    let sandbox = host.create_sandbox()?;
    let time = begun.elapsed().as_secs_f64();
    delete(host, &sandbox)?;
    Ok(time)
}

fn delete(host: &Host, sandbox: &str) -> Result<()> {
    host.call("DELETE", &format!("/api/v1/sandboxes/{sandbox}"), None)
        .map(drop)
}

fn unshare() -> Result<f64> {
    let begun = Instant::now();
    let done = program("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--ipc",
            "--uts",
            "--net",
            "--cgroup",
            "/bin/true",
        ])
        .status()?;
    ensure!(done.success(), "unshare failed");
    Ok(begun.elapsed().as_secs_f64())
}

/// Freezing and thawing 1, 10 and 100 sessions, beside the bare freezer and one sync.
pub(crate) fn freeze(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let host = bench.host()?;
    let mut rows = Vec::new();
    for count in [1_u64, 10, 100] {
        let sandbox = host.create_sandbox()?;
        for _ in 0..count {
            host.call(
                "POST",
                &format!("/api/v1/sandboxes/{sandbox}/sessions"),
                Some(&json!({"command": ["sleep", "100000"]})),
            )?;
        }
        let bare = Group::of_sleepers(count)?;
        for (verb, word) in [("suspend", "freeze"), ("resume", "thaw")] {
            let (ours, floor) = in_turns(
                bench.rounds,
                || timed_pairs(host, &sandbox, verb),
                || bare.timed(bench.scratch, word),
            )?;
            rows.push(Row {
                name: format!("{word} {count} sessions"),
                ours,
                floor,
                unit: "ms",
                against: "bare cgroup freezer + one fdatasync",
                bar: 3.0,
                better: Better::Lower,
            });
        }
        delete(host, &sandbox)?;
    }
    Ok(rows)
}

/// Median of one half of several freezes and thaws, milliseconds.
fn timed_pairs(host: &Host, sandbox: &str, verb: &str) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..9 {
        for call in ["suspend", "resume"] {
            let begun = Instant::now();
            host.call("POST", &format!("/v1/sandbox/{sandbox}/{call}"), None)?;
            if call == verb {
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    Ok(median(times))
}

/// A control group of our own with processes that sleep.
struct Group {
    path: PathBuf,
    sleepers: Vec<Child>,
}

impl Group {
    fn of_sleepers(count: u64) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let root = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .and_then(|line| line.split(' ').nth(4))
            .context("no cgroup2 is mounted")?;
        let path = Path::new(root).join(format!("outlive-bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        let mut group = Self {
            path,
            sleepers: Vec::new(),
        };
        for _ in 0..count {
            let sleeper = program("sleep")
                .arg("100000")
                .stdin(Stdio::null())
                .spawn()?;
            fs::write(group.path.join("cgroup.procs"), sleeper.id().to_string())?;
            group.sleepers.push(sleeper);
        }
        Ok(group)
    }

    fn timed(&self, scratch: &Path, word: &str) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..9 {
            for (half, text) in [("freeze", "1"), ("thaw", "0")] {
                let begun = Instant::now();
                fs::write(self.path.join("cgroup.freeze"), text)?;
                while !fs::read_to_string(self.path.join("cgroup.events"))?
                    .contains(&format!("frozen {text}"))
                {
                    std::hint::spin_loop();
                }
                if half == word {
                    times.push(begun.elapsed().as_secs_f64());
                }
            }
        }
        Ok((median(times) + fdatasync_time(scratch)?) * 1e3)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for sleeper in &mut self.sleepers {
            // One that can't be ended shows below: its group stays.
            if sleeper.kill().is_ok() {
                drop(sleeper.wait());
            }
        }
        if let Err(error) = fs::remove_dir(&self.path) {
            crate::report::say(&format!("{} is left: {error}", self.path.display()));
        }
    }
}

/// The runtime given back and the next one up, beside making a sandbox.
pub(crate) fn replace(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let host = bench.host()?;
    let sandbox = host.create_sandbox()?;
    let (ours, floor) = in_turns(
        bench.rounds,
        || {
            pause(AFTERMATH);
            let begun = Instant::now();
            for call in ["pause", "resume"] {
                host.call("POST", &format!("/api/v1/sandboxes/{sandbox}/{call}"), None)?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        },
        || Ok(create_and_delete(host)? * 1e3),
    )?;
    delete(host, &sandbox)?;
    Ok(vec![Row {
        name: "release → replace".to_owned(),
        ours,
        floor,
        unit: "ms",
        against: "create of the same sandbox",
        bar: 1.5,
        better: Better::Lower,
    }])
}

/// A fork of a large disk, beside `cp` of the same bytes.
pub(crate) fn fork(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let host = bench.host()?;
    let mib = 1024 / bench.shrink;
    let sandbox = host.create_sandbox()?;
    let fill = format!("head -c {mib}M /dev/urandom > /root/data && sync /root/data");
    let made = host.call(
        "POST",
        &format!("/api/v1/sandboxes/{sandbox}/sessions"),
        Some(&json!({"command": ["sh", "-c", fill]})),
    )?;
    let path = format!(
        "/api/v1/sandboxes/{sandbox}/sessions/{}/events/stream?until=exit",
        made["id"].as_str().context("no session")?
    );
    host.raw_call("GET", &path, None)?;
    let bytes = bench.scratch.join("fork-floor");
    let source = fs::File::create(&bytes)?;
    let mut random = fs::File::open("/dev/urandom")?;
    std::io::copy(
        &mut std::io::Read::take(&mut random, mib << 20),
        &mut &source,
    )?;
    (&source).flush()?;
    source.sync_all()?;
    let (ours, floor) = in_turns(
        bench.rounds,
        || {
            let begun = Instant::now();
            let answer = host.call("POST", &format!("/api/v1/sandboxes/{sandbox}/fork"), None)?;
            let time = begun.elapsed().as_secs_f64() * 1e3;
            let child = answer["sandbox"]["id"].as_str().context("no fork")?;
            delete(host, child)?;
            Ok(time)
        },
        || {
            let copy = bench.scratch.join("fork-floor-copy");
            let begun = Instant::now();
            let done = program("cp")
                .args(["--reflink=auto", "--archive"])
                .args([&bytes, &copy])
                .status()?;
            ensure!(done.success(), "cp failed");
            fs::File::open(&copy)?.sync_all()?;
            let time = begun.elapsed().as_secs_f64() * 1e3;
            fs::remove_file(copy)?;
            Ok(time)
        },
    )?;
    fs::remove_file(bytes)?;
    delete(host, &sandbox)?;
    Ok(vec![Row {
        name: format!("fork of a disk of {mib} MiB"),
        ours,
        floor,
        unit: "ms",
        against: "`cp --reflink=auto` + sync",
        bar: 1.2,
        better: Better::Lower,
    }])
}

/// What a sandbox that is frozen takes beyond its own processes: the memory of agent and server, and
/// what the kernel keeps of namespaces, mounts, groups and network.
pub(crate) fn asleep(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let host = Host::start(bench.scratch)?;
    let count = (500 / bench.shrink).max(10);
    let before = taken_kib(&host)?;
    let mut sandboxes = Vec::new();
    for _ in 0..count {
        let sandbox = host.create_sandbox()?;
        host.call(
            "POST",
            &format!("/api/v1/sandboxes/{sandbox}/sessions"),
            Some(&json!({"command": ["sleep", "100000"]})),
        )?;
        host.call("POST", &format!("/v1/sandbox/{sandbox}/suspend"), None)?;
        sandboxes.push(sandbox);
    }
    let taken = taken_kib(&host)? - before;
    for sandbox in &sandboxes {
        delete(&host, sandbox)?;
    }
    Ok(vec![Row {
        name: format!("memory of a frozen sandbox, {count} of them"),
        ours: taken / real(count) / 1024.0,
        floor: 8.0,
        unit: "MiB",
        against: "the bar",
        bar: 1.0,
        better: Better::Lower,
    }])
}

/// Of our programs, their share; of the kernel, what it can't give back, whoever uses it.
fn taken_kib(host: &Host) -> Result<f64> {
    const KERNEL: [&str; 4] = ["SUnreclaim:", "KernelStack:", "PageTables:", "Percpu:"];
    let mut kib = share(host.server_pid())?;
    for title in ["outlive-keeper", "outlive-supervisor", "sbx-init"] {
        for pid in pids_of(title)? {
            kib += share(pid)?;
        }
    }
    for line in fs::read_to_string("/proc/meminfo")?.lines() {
        if let Some(rest) = KERNEL.iter().find_map(|name| line.strip_prefix(name)) {
            kib += rest.trim().trim_end_matches(" kB").parse::<f64>()?;
        }
    }
    Ok(kib)
}

/// A server that is killed while many sandboxes run: how long until it answers for all of them.
pub(crate) fn take_up(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let mut host = Host::start(bench.scratch)?;
    let count = (200 / bench.shrink).max(10);
    let sandboxes = (0..count)
        .map(|_| host.create_sandbox())
        .collect::<Result<Vec<_>>>()?;
    let mut times = Vec::new();
    for _ in 0..bench.rounds {
        let begun = Instant::now();
        host.restart()?;
        // Each one takes a call that needs its supervisor.
        for sandbox in &sandboxes {
            host.call(
                "GET",
                &format!("/api/v1/sandboxes/{sandbox}/sessions"),
                None,
            )?;
        }
        times.push(begun.elapsed().as_secs_f64());
        pause(Duration::from_millis(100));
    }
    for sandbox in &sandboxes {
        delete(&host, sandbox)?;
    }
    Ok(vec![Row {
        name: format!("server killed with {} sandboxes → all answer", real(count)),
        ours: median(times),
        floor: 1.0,
        unit: "s",
        against: "a second",
        bar: 1.0,
        better: Better::Lower,
    }])
}
