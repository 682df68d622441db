//! From a request to the first byte, and from an exit to the client.

use std::{
    io::{BufRead, Read},
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Context, Result};
use serde_json::json;

use super::{Bench, in_turns, real};
use crate::{
    floor::{fdatasync_time, program},
    host::{CHILD_INSIDE, Host},
    report::{Better, Row, median},
    rows::follow::{now_ns, stamps_of_sse},
};

/// Creating a session until its first output is at the client.
pub(crate) fn first_byte(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let host = bench.host()?;
    let each = usize::try_from(200 / bench.shrink).unwrap_or(20);
    let (ours, floor) = in_turns(
        bench.rounds,
        || {
            let times = (0..each)
                .map(|_| create_and_see(host))
                .collect::<Result<Vec<_>>>()?;
            Ok(median(times) * 1e3)
        },
        || {
            let times = (0..each)
                .map(|_| spawn_and_see())
                .collect::<Result<Vec<_>>>()?;
            // A session's start is two intents that must be on disk: its creation and its attempt;
            // one batch, one sync.
            Ok((median(times) + fdatasync_time(bench.scratch)?) * 1e3)
        },
    )?;
    let eight = in_turns(
        bench.rounds,
        || at_once(each, || create_and_see(host).map(drop)),
        || at_once(each, || spawn_and_see().map(drop)),
    )?;
    Ok(vec![
        Row {
            name: "create → first byte at the client".to_owned(),
            ours,
            floor,
            unit: "ms",
            against: "`posix_spawn` to first byte + one fdatasync",
            bar: 2.5,
            better: Better::Lower,
        },
        Row {
            name: "create → first byte, 8 at once".to_owned(),
            ours: eight.0,
            floor: eight.1,
            unit: "1/s",
            against: "spawns, 8 at once",
            bar: 0.6,
            better: Better::Higher,
        },
    ])
}

fn create_and_see(host: &Host) -> Result<f64> {
    let begun = Instant::now();
    let session = host.session(&json!({"command": ["/bin/echo", "hello"]}))?;
    let mut stream = host.follow(&session, 0, "")?;
    let mut line = String::new();
    while !line.contains("data_base64") {
        line.clear();
        anyhow::ensure!(
            stream.read_line(&mut line)? > 0,
            "the stream ended before any output"
        );
    }
    let time = begun.elapsed().as_secs_f64();
    host.delete(&session)?;
    Ok(time)
}

fn spawn_and_see() -> Result<f64> {
    let begun = Instant::now();
    let mut child = program("/bin/echo")
        .arg("hello")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut byte = [0; 1];
    child
        .stdout
        .take()
        .context("no stdout")?
        .read_exact(&mut byte)?;
    let time = begun.elapsed().as_secs_f64();
    child.wait()?;
    Ok(time)
}

fn at_once(count: usize, work: impl Fn() -> Result<()> + Sync) -> Result<f64> {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < count {
                        work()?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked")))
        })
    })?;
    Ok(real(count as u64) / begun.elapsed().as_secs_f64())
}

/// A process's last instant until the client has its exit.
pub(crate) fn exit_seen(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let each = 100 / bench.shrink;
    let mut times = Vec::new();
    for _ in 0..each {
        let session = bench
            .host()?
            .session(&json!({"command": [CHILD_INSIDE, "stamps", "1", "20000"]}))?;
        let mut stream = bench.host()?.follow(&session, 0, "")?;
        let (mut line, mut stamp) = (String::new(), 0);
        while !line.contains("\"type\":\"attempt.exited\"") {
            line.clear();
            anyhow::ensure!(
                stream.read_line(&mut line)? > 0,
                "the stream ended before the exit"
            );
            stamps_of_sse(line.as_bytes(), |at| stamp = at);
        }
        times.push(real(now_ns() - stamp) / 1e6);
        bench.host()?.delete(&session)?;
    }
    Ok(vec![Row {
        name: "last write → exit at the client, p50".to_owned(),
        ours: median(times),
        floor: 1.0 + fdatasync_time(bench.scratch)? * 1e3,
        unit: "ms",
        against: "1 ms + fdatasync",
        bar: 1.0,
        better: Better::Lower,
    }])
}
