//! From a child's write to its followers.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::{
    event::epoll,
    time::{ClockId, clock_gettime},
};
use serde_json::json;

use super::{Bench, real};
use crate::{
    floor::{cpu_of, program},
    host::{CHILD_INSIDE, beside},
    report::{Better, Row, quantile},
};

/// The monotonic clock, nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}

/// Calls `found` with every time stamp of the events in `text`.
pub(crate) fn stamps_of_sse(text: &[u8], mut found: impl FnMut(u64)) {
    const KEY: &[u8] = b"\"data_base64\":\"";
    let mut rest = text;
    while let Some(at) = find(rest, KEY) {
        rest = rest.get(at + KEY.len()..).unwrap_or_default();
        let end = rest
            .iter()
            .position(|byte| *byte == b'"')
            .unwrap_or(rest.len());
        let (data, behind) = rest.split_at(end);
        if let Ok(plain) = base64_simd::STANDARD.decode_to_vec(data) {
            stamps_of_plain(&plain, &mut found);
        }
        rest = behind;
    }
}

/// Calls `found` with every time stamp in `text`.
fn stamps_of_plain(text: &[u8], mut found: impl FnMut(u64)) {
    for line in text.split(|byte| *byte == b'\n') {
        let digits = line
            .strip_prefix(b"@")
            .and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(stamp) = digits.and_then(|digits| digits.parse().ok()) {
            found(stamp);
        }
    }
}

fn find(text: &[u8], key: &[u8]) -> Option<usize> {
    text.windows(key.len()).position(|window| window == key)
}

/// Delays of every stamp at every subscriber, nanoseconds, read by one thread.
fn delays(mut streams: Vec<TcpStream>, each: u64, sse: bool) -> Result<Vec<f64>> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (at, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true)?;
        epoll::add(
            &poll,
            stream.as_fd(),
            epoll::EventData::new_u64(at as u64),
            epoll::EventFlags::IN,
        )?;
    }
    let wanted = usize::try_from(each).unwrap_or(0) * streams.len();
    let mut open = streams.len();
    let mut partial = vec![Vec::new(); streams.len()];
    let (mut found, mut buffer) = (Vec::with_capacity(wanted), vec![0; 64 * 1024]);
    let mut events = Vec::with_capacity(64);
    while found.len() < wanted {
        epoll::wait(
            &poll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&rustix::event::Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            }),
        )?;
        anyhow::ensure!(
            !events.is_empty(),
            "{} of {wanted} lines arrived, then 20 s of nothing",
            found.len()
        );
        for event in events.drain(..) {
            let at = usize::try_from(event.data.u64()).unwrap_or(0);
            let (stream, rest) = (&mut streams[at], &mut partial[at]);
            let count = match stream.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            if count == 0 {
                epoll::delete(&poll, stream.as_fd())?;
                open -= 1;
                anyhow::ensure!(
                    open > 0 || found.len() >= wanted,
                    "every stream ended after {} of {wanted} lines",
                    found.len()
                );
                continue;
            }
            let now = now_ns();
            rest.extend_from_slice(buffer.get(..count).unwrap_or_default());
            let whole = rest
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
            let lines: Vec<u8> = rest.drain(..whole).collect();
            let mut push = |stamp| found.push(real(now.saturating_sub(stamp)));
            if sse {
                stamps_of_sse(&lines, &mut push);
            } else {
                stamps_of_plain(&lines, &mut push);
            }
        }
    }
    Ok(found)
}

/// Delays through a session's event stream, and the server's and supervisor's CPU seconds.
fn through_us(
    bench: &Bench<'_>,
    subscribers: usize,
    lines: u64,
    gap_us: u64,
) -> Result<(Vec<f64>, f64)> {
    let host = bench.host()?;
    // The child waits for a line, so that everybody is there when it begins.
    let script = format!("read go; exec {CHILD_INSIDE} stamps {lines} {gap_us}");
    let session = host.session(&json!({"command": ["/bin/sh", "-c", script]}))?;
    let streams = (0..subscribers)
        .map(|_| {
            let mut reader = host.follow(&session, 0, "")?;
            let mut line = String::new();
            while !line.contains("session.ready") {
                line.clear();
                reader.read_line(&mut line)?;
            }
            Ok(reader.into_inner())
        })
        .collect::<Result<Vec<_>>>()?;
    let supervisor = host.pid_of("outlive-supervisor")?;
    let before = cpu_of(host.server_pid())? + cpu_of(supervisor)?;
    let go = json!({"input_id": "go", "data_base64": "Z28K"});
    host.call(
        "POST",
        &format!("{}/inputs", host.session_path(&session)),
        Some(&go),
    )?;
    let found = delays(streams, lines, true)?;
    let cpu = cpu_of(host.server_pid())? + cpu_of(supervisor)? - before;
    host.delete(&session)?;
    Ok((found, cpu))
}

/// Delays through a plain fan-out over TCP, and its CPU seconds.
fn through_tcp(subscribers: usize, lines: u64, gap_us: u64) -> Result<(Vec<f64>, f64)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut readers = Vec::new();
    let mut writers = Vec::new();
    for _ in 0..subscribers {
        readers.push(TcpStream::connect(address)?);
        let writer = listener.accept()?.0;
        writer.set_nodelay(true)?;
        writers.push(writer);
    }
    let mut child = program(beside("bench-child")?)
        .args(["stamps", &lines.to_string(), &gap_us.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut source = BufReader::new(child.stdout.take().context("no stdout")?);
    let fan = std::thread::spawn(move || -> Result<f64> {
        let mut line = Vec::new();
        while source.read_until(b'\n', &mut line)? > 0 {
            for writer in &mut writers {
                writer.write_all(&line)?;
            }
            line.clear();
        }
        let used = clock_gettime(ClockId::ThreadCPUTime);
        Ok(Duration::new(u64::try_from(used.tv_sec)?, u32::try_from(used.tv_nsec)?).as_secs_f64())
    });
    let found = delays(readers, lines, false)?;
    let cpu = fan
        .join()
        .unwrap_or_else(|_| Err(anyhow::anyhow!("the fan-out panicked")))?;
    child.wait()?;
    Ok((found, cpu))
}

/// 1 to 1000 subscribers of one session.
pub(crate) fn fan_out(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (subscribers, bar) in [(1, 1.8), (10, 1.2), (100, 1.0), (1000, 1.0)] {
        let lines = if subscribers >= 1000 { 200 } else { 1000 } / bench.shrink;
        let gap_us = if subscribers >= 1000 { 20_000 } else { 2_000 };
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds.min(3) {
            floor.push(through_tcp(subscribers, lines, gap_us)?);
            ours.push(through_us(bench, subscribers, lines, gap_us)?);
        }
        let p50 = |all: &[(Vec<f64>, f64)]| {
            quantile(
                all.iter().flat_map(|(delays, _)| delays.clone()).collect(),
                0.5,
            ) / 1e3
        };
        let per_delivery = |all: &[(Vec<f64>, f64)]| {
            let (cpu, count) = all.iter().fold((0.0, 0), |(cpu, count), (delays, used)| {
                (cpu + used, count + delays.len())
            });
            cpu * 1e6 / real(count as u64)
        };
        rows.push(Row {
            name: format!("write → follower, p50, {subscribers} subscribers"),
            ours: p50(&ours),
            floor: p50(&floor),
            unit: "µs",
            against: "plain TCP fan-out",
            bar,
            better: Better::Lower,
        });
        if subscribers == 100 {
            rows.push(Row {
                name: "CPU per delivery, 100 subscribers".to_owned(),
                ours: per_delivery(&ours),
                floor: per_delivery(&floor),
                unit: "µs",
                against: "TCP send of the same bytes",
                bar: 1.3,
                better: Better::Lower,
            });
        }
    }
    rows.push(kept_up(bench)?);
    Ok(rows)
}

/// 100 subscribers of 1000 lines a second: is everything there in time?
fn kept_up(bench: &Bench<'_>) -> Result<Row> {
    let (delays, _) = through_us(bench, 100, 3000 / bench.shrink, 1000)?;
    Ok(Row {
        name: "100 subscribers × 1000 lines/s, p99".to_owned(),
        ours: quantile(delays, 0.99) / 1e6,
        floor: 5.0,
        unit: "ms",
        against: "5 ms",
        bar: 1.0,
        better: Better::Lower,
    })
}
