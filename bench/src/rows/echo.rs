//! Typing.

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpStream,
    time::Instant,
};

use anyhow::Result;
use serde_json::json;
use tungstenite::{Message, WebSocket, client::IntoClientRequest};

use super::Bench;
use crate::{
    floor::{terminal, terminal_end},
    host::Host,
    report::{Better, Row, median},
};

fn connect(host: &Host, session: &str) -> Result<WebSocket<TcpStream>> {
    let (address, token) = host.credentials();
    let mut request =
        format!("ws://{address}{}/ws", host.session_path(session)).into_client_request()?;
    request
        .headers_mut()
        .insert("authorization", format!("Bearer {token}").parse()?);
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(tungstenite::client(request, stream)?.0)
}

/// Types `count` keys and answers the time of each until its echo, microseconds.
fn type_keys(socket: &mut WebSocket<TcpStream>, count: usize) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count);
    for at in 0..count {
        // A new line every 64 keys: the line discipline holds 4095 bytes of one line, and `cat` takes
        // the lines away.
        let data = if at % 64 == 63 { "Cg==" } else { "YQ==" };
        let begun = Instant::now();
        let message = json!({"type": "input", "request_id": "r", "input_id": format!("k{at}"), "data_base64": data});
        socket.send(Message::text(message.to_string()))?;
        let (mut echoed, mut acked) = (false, false);
        while !(echoed && acked) {
            if let Message::Text(text) = socket.read()? {
                if text.contains("\"data_base64\"") && !echoed {
                    echoed = true;
                    times.push(begun.elapsed().as_secs_f64() * 1e6);
                }
                acked |= text.starts_with("{\"type\":\"ack\"") || text.contains("\"type\":\"ack\"");
            }
        }
    }
    Ok(times)
}

/// A key until its echo, over a WebSocket and a terminal.
pub(crate) fn keystroke(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let session = bench
        .host()?
        .session(&json!({"command": ["sh", "-c", "cat > /dev/null"], "io": {"mode": "pty"}}))?;
    let mut socket = connect(bench.host()?, &session)?;
    let ours = median(type_keys(&mut socket, 1000)?);
    bench.host()?.delete(&session)?;
    let (master, path) = terminal()?;
    let end = terminal_end(&path, false)?;
    let mut master = File::from(master);
    let mut times = Vec::new();
    for at in 0..1000 {
        let key: &[u8] = if at % 64 == 63 { b"\n" } else { b"a" };
        let begun = Instant::now();
        master.write_all(key)?;
        let echoed = master.read(&mut [0; 16])?;
        anyhow::ensure!(echoed > 0, "the terminal ended");
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    drop(end);
    Ok(vec![Row {
        name: "keystroke → echo".to_owned(),
        ours,
        floor: median(times),
        unit: "µs",
        against: "local PTY",
        bar: 8.0,
        better: Better::Lower,
    }])
}

/// Whether the 10,000th input costs what the first ones do.
pub(crate) fn many_inputs(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let session = bench
        .host()?
        .session(&json!({"command": ["sh", "-c", "cat > /dev/null"], "io": {"mode": "pty"}}))?;
    let mut socket = connect(bench.host()?, &session)?;
    let times = type_keys(&mut socket, 10_000)?;
    bench.host()?.delete(&session)?;
    let part = |from: usize| median(times.get(from..from + 1000).unwrap_or_default().to_vec());
    Ok(vec![Row {
        name: "input after 10,000 receipts".to_owned(),
        ours: part(9000),
        floor: part(0),
        unit: "µs",
        against: "the first inputs",
        bar: 1.2,
        better: Better::Lower,
    }])
}
