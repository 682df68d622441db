//! Reading a journal back.

use std::{
    fs::{self, File},
    io::{BufReader, Read, Write},
    net::TcpStream,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tungstenite::{Message, client::IntoClientRequest};

use super::{Bench, in_turns, real};
use crate::{
    floor::{Nginx, cat_into_files},
    host::{CHILD_INSIDE, Host, read_head},
    report::{Better, Row, median},
};

const KEEP: u64 = 4 << 30;

/// One follower of a session that writes as fast as it can: bytes over the time to its last byte.
pub(crate) fn one_follower(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let bytes = (512 << 20) / bench.shrink;
    let spec = json!({
        "command": [CHILD_INSIDE, "write", "65536", bytes.to_string()],
        "event_retention": {"max_bytes": KEEP},
    });
    let (ours, floor) = in_turns(
        bench.rounds,
        || {
            let begun = Instant::now();
            let session = bench.host()?.session(&spec)?;
            read_sse(bench.host()?, &session)?;
            let rate = real(bytes) / 1_048_576.0 / begun.elapsed().as_secs_f64();
            bench.host()?.delete(&session)?;
            Ok(rate)
        },
        || Ok(real(bytes) / 1_048_576.0 / cat_into_files(bench.scratch, 1, 65536, bytes)?.wall),
    )?;
    Ok(vec![Row {
        name: "1 follower of a flood".to_owned(),
        ours,
        floor,
        unit: "MiB/s",
        against: "`| cat > file`",
        bar: 0.25,
        better: Better::Higher,
    }])
}

/// Reads the event stream to its end, the exit.
fn read_sse(host: &Host, session: &str) -> Result<u64> {
    let mut stream = host.follow(session, 0, "&until=exit")?;
    let (mut buffer, mut total) = (vec![0; 1 << 20], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(total),
            count => total += count as u64,
        }
    }
}

fn written(bench: &Bench<'_>, bytes: u64) -> Result<String> {
    let spec = json!({
        "command": [CHILD_INSIDE, "write", "65536", bytes.to_string()],
        "event_retention": {"max_bytes": KEEP},
    });
    let session = bench.host()?.session(&spec)?;
    bench.host()?.wait_for_exit(&session)?;
    Ok(session)
}

type Way<'a> = &'a dyn Fn() -> Result<u64>;

/// A whole journal by event stream, by pages and by WebSocket.
pub(crate) fn whole(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let bytes = (256 << 20) / bench.shrink;
    let session = written(bench, bytes)?;
    let file = bench.scratch.join("replay");
    write_file(&file, bytes)?;
    let nginx = Nginx::serve(bench.scratch)?;
    let rate = |begun: Instant| real(bytes) / 1_048_576.0 / begun.elapsed().as_secs_f64();
    let floor = || -> Result<f64> {
        let begun = Instant::now();
        ensure!(
            read_static(&nginx, "/replay")? >= bytes,
            "nginx sent less than the file"
        );
        Ok(rate(begun))
    };
    let ways: [(&str, Way<'_>); 3] = [
        ("SSE", &|| read_sse(bench.host()?, &session)),
        ("pages", &|| read_pages(bench.host()?, &session)),
        ("WebSocket", &|| read_socket(bench.host()?, &session)),
    ];
    let mut rows = Vec::new();
    for (way, read) in ways {
        let ours = || -> Result<f64> {
            let begun = Instant::now();
            ensure!(read()? >= bytes, "{way} sent less than the output");
            Ok(rate(begun))
        };
        let (ours, floor) = in_turns(bench.rounds, ours, floor)?;
        rows.push(Row {
            name: format!("replay 256 MiB, {way}"),
            ours,
            floor,
            unit: "MiB/s",
            against: "nginx, static file",
            bar: 0.3,
            better: Better::Higher,
        });
    }
    fs::remove_file(file)?;
    bench.host()?.delete(&session)?;
    Ok(rows)
}

fn write_file(path: &std::path::Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let block = vec![b'x'; 1 << 20];
    for _ in 0..bytes.div_ceil(1 << 20) {
        file.write_all(&block)?;
    }
    Ok(())
}

fn read_static(nginx: &Nginx, path: &str) -> Result<u64> {
    let mut stream = TcpStream::connect(&nginx.address)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )?;
    let (mut buffer, mut total) = (vec![0; 1 << 20], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(total),
            count => total += count as u64,
        }
    }
}

fn read_pages(host: &Host, session: &str) -> Result<u64> {
    let (mut after, mut total) = (0, 0);
    loop {
        let path = format!(
            "{}/events?after={after}&limit=1000",
            host.session_path(session)
        );
        let (status, page) = host.raw_call("GET", &path, None)?;
        ensure!(status == 200, "{path}: {status}");
        total += page.len() as u64;
        // Only the last event's number is needed: reading the rest is not what is measured.
        let page = std::str::from_utf8(&page)?;
        let (_, last) = page.rsplit_once("{\"seq\":").context("an empty page")?;
        after = last.split(',').next().unwrap_or("").parse()?;
        if last.contains("\"attempt.exited\"") {
            return Ok(total);
        }
    }
}

fn read_socket(host: &Host, session: &str) -> Result<u64> {
    let (address, token) = host.credentials();
    let mut request =
        format!("ws://{address}{}/ws?after=0", host.session_path(session)).into_client_request()?;
    request
        .headers_mut()
        .insert("authorization", format!("Bearer {token}").parse()?);
    let (mut socket, _) = tungstenite::client(request, TcpStream::connect(address)?)?;
    let mut total = 0;
    loop {
        if let Message::Text(text) = socket.read()? {
            total += text.len() as u64;
            if text.contains("\"attempt.exited\"") {
                return Ok(total);
            }
        }
    }
}

/// The last event of a large journal.
pub(crate) fn near_the_end(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let nginx = Nginx::serve(bench.scratch)?;
    fs::write(bench.scratch.join("one"), "x")?;
    let mut rows = Vec::new();
    for (name, bytes) in [("64 MiB", 64 << 20), ("1 GiB", 1 << 30)] {
        let session = written(bench, bytes / bench.shrink)?;
        let latest = bench.host()?.get(&session)?["cursor"]["latest"]
            .as_u64()
            .context("no cursor")?;
        let ours = || -> Result<f64> {
            let times = (0..50).map(|_| {
                let begun = Instant::now();
                let mut stream = bench.host()?.follow(&session, latest - 1, "")?;
                stream.read_exact(&mut [0; 8])?;
                Ok(begun.elapsed().as_secs_f64() * 1e6)
            });
            Ok(median(times.collect::<Result<_>>()?))
        };
        let floor = || -> Result<f64> {
            let times = (0..50).map(|_| {
                let begun = Instant::now();
                let mut stream = TcpStream::connect(&nginx.address)?;
                write!(stream, "GET /one HTTP/1.1\r\nHost: x\r\n\r\n")?;
                let mut stream = BufReader::new(stream);
                read_head(&mut stream)?;
                stream.read_exact(&mut [0; 1])?;
                Ok(begun.elapsed().as_secs_f64() * 1e6)
            });
            Ok(median(times.collect::<Result<_>>()?))
        };
        let (ours, floor) = in_turns(bench.rounds, ours, floor)?;
        rows.push(Row {
            name: format!("resume near the end, {name} journal"),
            ours,
            floor,
            unit: "µs",
            against: "nginx, connect + first byte",
            bar: 1.5,
            better: Better::Lower,
        });
        bench.host()?.delete(&session)?;
    }
    Ok(rows)
}
