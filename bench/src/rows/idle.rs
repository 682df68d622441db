//! What sessions cost that do nothing.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use serde_json::json;

use super::{Bench, real};
use crate::{
    floor::cpu_of,
    host::{Host, pause},
    report::{Better, Row},
};

/// What a sandbox costs that has no session at all: keeper, supervisor and `sbx-init`.
pub(crate) fn agent(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let host = bench.host()?;
    let keeper = host.pid_of("outlive-keeper")?;
    // Runtime `process` has no `sbx-init`, and no other child of a keeper has that name.
    let kib = [keeper, host.pid_of("outlive-supervisor")?]
        .into_iter()
        .chain(child_of(keeper, "sbx-init")?)
        .map(share)
        .sum::<Result<f64>>()?;
    Ok(vec![row(
        "idle memory of a sandbox's agent".to_owned(),
        kib / 1024.0,
        "MiB",
        5.0,
    )])
}

fn child_of(parent: u32, title: &str) -> Result<Option<u32>> {
    let is_child = |pid: &u32| {
        // A process that is gone meanwhile is none of ours.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains(&format!("\nPPid:\t{parent}\n"))
    };
    Ok(pids_of(title)?.into_iter().find(is_child))
}

/// All processes of a title.
pub(super) fn pids_of(title: &str) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).next() == Some(title.as_bytes()) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

/// Memory a session, pipes and PTY, and CPU of many.
pub(crate) fn idle(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let count = 400 / bench.shrink;
    let mut rows = Vec::new();
    for (mode, bar) in [("pipes", 16.0), ("pty", 24.0)] {
        let before = memory(bench.host()?)?;
        let spec = json!({"command": ["sleep", "100000"], "io": {"mode": mode}});
        let made = (0..count)
            .map(|_| bench.host()?.session(&spec))
            .collect::<Result<Vec<_>>>()?;
        pause(Duration::from_secs(2));
        let each = (memory(bench.host()?)? - before) / real(count);
        let (from, time) = (cpu(bench.host()?)?, Duration::from_secs(10));
        pause(time);
        let used_ms = (cpu(bench.host()?)? - from) * 1e3 / time.as_secs_f64();
        made.iter()
            .try_for_each(|session| bench.host()?.delete(session))?;
        rows.push(row(
            format!("idle memory a session, {mode}"),
            each,
            "KiB",
            bar,
        ));
        rows.push(row(
            format!("idle CPU of {count} sessions, {mode}"),
            used_ms,
            "ms/s",
            1.0,
        ));
    }
    Ok(rows)
}

fn row(name: String, ours: f64, unit: &'static str, bar: f64) -> Row {
    Row {
        name,
        ours,
        floor: bar,
        unit,
        against: "the bar",
        bar: 1.0,
        better: Better::Lower,
    }
}

fn processes(host: &Host) -> Result<[u32; 3]> {
    Ok([
        host.pid_of("outlive-keeper")?,
        host.pid_of("outlive-supervisor")?,
        host.server_pid(),
    ])
}

fn cpu(host: &Host) -> Result<f64> {
    processes(host)?.into_iter().map(cpu_of).sum()
}

/// Proportional share of keeper, supervisor and server, KiB.
fn memory(host: &Host) -> Result<f64> {
    processes(host)?.into_iter().map(share).sum()
}

/// A process's proportional share of memory, KiB.
pub(super) fn share(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .context("no Pss")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()?)
}
