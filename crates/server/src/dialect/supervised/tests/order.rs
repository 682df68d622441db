//! The order of what one connection sends, when it sends more than is carried out.

use serde_json::{Value, json};

use super::{
    World,
    socket::{Socket, hold},
};
use crate::limits::WS_REQUESTS_MAX;

fn input(id: &str) -> Value {
    json!({
        "type": "input", "request_id": id, "input_id": id,
        "data_base64": base64_simd::STANDARD.encode_to_string(id),
    })
}

/// The next answer to a request; events are passed over.
async fn answer(socket: &mut Socket) -> Value {
    loop {
        let message = socket.next().await;
        if message["type"] != "event" {
            return message;
        }
    }
}

// A client that sent 400 lines at once had some of them refused, because 256 waited, although the
// program took every one: and those behind them were accepted, so that lines were missing between
// others.
#[tokio::test]
async fn what_is_sent_faster_than_it_is_carried_out_waits_and_none_is_refused() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    hold(&world, &mut socket).await;
    let lines: Vec<_> = (0..2 * WS_REQUESTS_MAX + 9)
        .map(|number| number.to_string())
        .collect();
    for line in &lines {
        socket.send(input(line)).await;
    }
    world.sandbox.hold_signals.send_replace(false);
    assert_eq!(answer(&mut socket).await["request_id"], "held");
    for line in &lines {
        let expected = json!({"type": "ack", "request_id": line});
        assert_eq!(answer(&mut socket).await, expected);
    }
}

#[tokio::test]
async fn an_input_that_is_refused_takes_those_with_it_that_were_sent_behind_it() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    hold(&world, &mut socket).await;
    *world.sandbox.room.lock().unwrap() = Some(2);
    for name in ["a", "b", "c", "d", "e"] {
        socket.send(input(name)).await;
    }
    // Only inputs have an order to keep.
    socket
        .send(json!({"type": "signal", "request_id": "f", "signal": "CONT"}))
        .await;
    world.sandbox.hold_signals.send_replace(false);
    let mut answers = Vec::new();
    for _ in 0..7 {
        let answer = answer(&mut socket).await;
        answers.push((answer["request_id"].clone(), answer["code"].clone()));
    }
    let full = Value::from("input_buffer_full");
    let expected = [
        ("held", &Value::Null),
        ("a", &Value::Null),
        ("b", &Value::Null),
        ("c", &full),
        ("d", &full),
        ("e", &full),
        ("f", &Value::Null),
    ]
    .map(|(name, code)| (name.into(), code.clone()));
    assert_eq!(answers, expected);
    // Whoever has read that sends them again.
    for name in ["c", "d", "e"] {
        socket.send(input(name)).await;
        let expected = json!({"type": "ack", "request_id": name});
        assert_eq!(answer(&mut socket).await, expected);
    }
    let (_, page) = world
        .call("GET", &format!("/{id}/events?types=output"), Value::Null)
        .await;
    let events = page["data"]["events"].as_array().unwrap();
    let written = events
        .iter()
        .filter_map(|event| event["data_base64"].as_str());
    assert_eq!(
        written.collect::<Vec<_>>(),
        ["YQ==", "Yg==", "Yw==", "ZA==", "ZQ=="]
    );
}

#[tokio::test]
async fn a_request_whose_name_is_no_text_is_answered_like_others() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    let mut misnamed = input("a");
    misnamed["request_id"] = json!([1]);
    socket.send(misnamed).await;
    assert_eq!(
        answer(&mut socket).await,
        json!({"type": "error", "code": "invalid_request", "error": "request_id must be text"})
    );
    socket.send(input("a")).await;
    assert_eq!(answer(&mut socket).await["type"], "ack");
}
