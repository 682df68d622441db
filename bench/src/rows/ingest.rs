//! How fast output reaches the journal.

use std::{fs::File, time::Instant};

use anyhow::Result;
use serde_json::json;

use super::{Bench, in_turns, real};
use crate::{
    floor::{Cost, cat_into_files, cpu_of, drain_terminal},
    host::CHILD_INSIDE,
    report::{Better, Row, median},
};

/// Retention that keeps everything a row writes.
const KEEP: u64 = 4 << 30;

/// Small and large writes, 1, 10 and 100 sessions at once, and what the CPU of it is.
pub(crate) fn streams(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (size, total, bar) in [(64, 192 << 20, 1.0), (65536, 2 << 30, 0.6)] {
        for count in [1, 10, 100] {
            let each = total / bench.shrink / count;
            let (mut ours, mut floor) = (Vec::new(), Vec::new());
            for _ in 0..bench.rounds {
                floor.push(cat_into_files(bench.scratch, count, size, each)?);
                ours.push(sessions(bench, count, size, each, KEEP)?);
            }
            let mib = real(each * count) / 1_048_576.0;
            let rate = |costs: &[Cost]| median(costs.iter().map(|cost| mib / cost.wall).collect());
            let cpu =
                |costs: &[Cost]| median(costs.iter().map(|cost| cost.cpu / mib * 1024.0).collect());
            let what = format!("ingest, {size}-byte writes, {count} sessions");
            rows.push(Row {
                name: what.clone(),
                ours: rate(&ours),
                floor: rate(&floor),
                unit: "MiB/s",
                against: "`| cat > file`",
                bar,
                better: Better::Higher,
            });
            rows.push(Row {
                name: format!("{what}: CPU per GiB"),
                ours: cpu(&ours),
                floor: cpu(&floor),
                unit: "s",
                against: "CPU of that `cat`",
                bar: 1.5,
                better: Better::Lower,
            });
        }
    }
    Ok(rows)
}

/// Runs `count` sessions that write `each` bytes; from the first create to the last exit.
fn sessions(bench: &Bench<'_>, count: u64, size: u64, each: u64, keep: u64) -> Result<Cost> {
    let host = bench.host()?;
    let supervisor = host.pid_of("outlive-supervisor")?;
    let cpu = || -> Result<f64> { Ok(cpu_of(supervisor)? + cpu_of(host.server_pid())?) };
    let before = cpu()?;
    let begun = Instant::now();
    let spec = json!({
        "command": [CHILD_INSIDE, "write", size.to_string(), each.to_string()],
        "event_retention": {"max_bytes": keep},
    });
    let made = (0..count)
        .map(|_| host.session(&spec))
        .collect::<Result<Vec<_>>>()?;
    for session in &made {
        host.wait_for_exit(session)?;
    }
    let cost = Cost {
        wall: begun.elapsed().as_secs_f64(),
        cpu: cpu()? - before,
    };
    made.iter().try_for_each(|session| host.delete(session))?;
    Ok(cost)
}

/// A terminal's output.
pub(crate) fn terminal(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let bytes = (64 << 20) / bench.shrink;
    let spec = json!({
        "command": [CHILD_INSIDE, "write", "4096", bytes.to_string()],
        "io": {"mode": "pty"},
        "event_retention": {"max_bytes": KEEP},
    });
    let ours = || -> Result<f64> {
        let begun = Instant::now();
        let session = bench.host()?.session(&spec)?;
        bench.host()?.wait_for_exit(&session)?;
        let rate = real(bytes) / 1_048_576.0 / begun.elapsed().as_secs_f64();
        bench.host()?.delete(&session)?;
        Ok(rate)
    };
    let rate = |seconds: f64| real(bytes) / 1_048_576.0 / seconds;
    let raw = in_turns(bench.rounds, ours, || {
        Ok(rate(drain_terminal(bytes, None)?))
    })?;
    let logged = in_turns(bench.rounds, ours, || {
        let file = File::create(bench.scratch.join("terminal"))?;
        Ok(rate(drain_terminal(bytes, Some(file))?))
    })?;
    let row = |(ours, floor): (f64, f64), against, bar| Row {
        name: "PTY 64 MiB".to_owned(),
        ours,
        floor,
        unit: "MiB/s",
        against,
        bar,
        better: Better::Higher,
    };
    Ok(vec![
        row(raw, "draining the master", 0.8),
        row(logged, "a read+write logger", 0.9),
    ])
}

/// What retention at its limit costs.
pub(crate) fn retention(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let bytes = (512 << 20) / bench.shrink;
    let rate = |keep| -> Result<f64> {
        Ok(real(bytes) / 1_048_576.0 / sessions(bench, 1, 65536, bytes, keep)?.wall)
    };
    let (ours, floor) = in_turns(bench.rounds, || rate(16 << 20), || rate(KEEP))?;
    Ok(vec![Row {
        name: "ingest with retention at its limit (16 MiB)".to_owned(),
        ours,
        floor,
        unit: "MiB/s",
        against: "the same without",
        bar: 0.95,
        better: Better::Higher,
    }])
}
