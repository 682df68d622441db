//! The logger alone, beside conmon: bytes for each second of its CPU.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Bench, in_turns, real};
use crate::{
    floor::{cpu_of, program},
    host::{CHILD_INSIDE, beside, pause},
    report::{Better, Row},
};

/// Output of one child, 64-byte and 64-KiB writes.
pub(crate) fn conmon(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (size, total) in [(64, 128 << 20), (65536, 1 << 30)] {
        let bytes = total / bench.shrink;
        let (ours, floor) = in_turns(
            bench.rounds,
            || ours(bench, size, bytes),
            || peer(bench, size, bytes),
        )?;
        rows.push(Row {
            name: format!("logger alone, {size}-byte writes, bytes per CPU second"),
            ours,
            floor,
            unit: "MiB/s",
            against: "conmon",
            bar: 2.0,
            better: Better::Higher,
        });
    }
    Ok(rows)
}

fn ours(bench: &Bench<'_>, size: u64, bytes: u64) -> Result<f64> {
    let supervisor = bench.host()?.pid_of("outlive-supervisor")?;
    let before = cpu_of(supervisor)?;
    let spec = json!({
        "command": [CHILD_INSIDE, "write", size.to_string(), bytes.to_string()],
        "event_retention": {"max_bytes": 4_u64 << 30},
    });
    let session = bench.host()?.session(&spec)?;
    bench.host()?.wait_for_exit(&session)?;
    let cpu = cpu_of(supervisor)? - before;
    bench.host()?.delete(&session)?;
    Ok(real(bytes) / 1_048_576.0 / cpu)
}

/// conmon with a runtime that is a shell script: it starts the child and writes its pid.
///
/// conmon ends at once where it can't make its attach socket, whose directory is CRI-O's unless told.
fn peer(bench: &Bench<'_>, size: u64, bytes: u64) -> Result<f64> {
    let dir = bench.scratch.join("conmon");
    let sockets = dir.join("sockets");
    fs::create_dir_all(&sockets)?;
    let (runtime, log, pid_file) = (dir.join("runtime"), dir.join("log"), dir.join("pid"));
    let child = beside("bench-child")?;
    let script = format!(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --pid-file ] && file=$2; shift; done\n\
         (sleep 0.1; exec {} write {size} {bytes}) &\necho $! > \"$file\"\n",
        child.display()
    );
    fs::write(&runtime, script)?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755))?;
    let mut conmon = program("conmon")
        .args([
            "--sync",
            "--no-sync-log",
            "-c",
            "bench",
            "-u",
            "bench",
            "-n",
            "bench",
            "-b",
        ])
        .arg(&dir)
        .arg("-r")
        .arg(&runtime)
        .arg("-p")
        .arg(&pid_file)
        .arg("-l")
        .arg(&log)
        .arg("--exit-dir")
        .arg(&dir)
        .arg("--socket-dir-path")
        .arg(&sockets)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("conmon is needed for this row: apt-get install conmon")?;
    let begun = Instant::now();
    let mut cpu = 0.0;
    while conmon.try_wait()?.is_none() {
        ensure!(
            begun.elapsed() < Duration::from_mins(2),
            "conmon did not end"
        );
        cpu = cpu_of(conmon.id()).unwrap_or(cpu);
        pause(Duration::from_millis(5));
    }
    let logged = fs::metadata(&log)?.len();
    ensure!(logged >= bytes, "conmon logged {logged} of {bytes} bytes");
    fs::remove_dir_all(&dir)?;
    Ok(real(bytes) / 1_048_576.0 / cpu)
}
