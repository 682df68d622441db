//! What is too much before a request's body.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    limits::{ADDRESS_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, HEADERS_READ_MAX},
    listen::accept,
};

/// What a server says to these bytes: status, headers and body, on a connection of their own.
async fn said(house: &House, head: &str) -> (u16, String, Value) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let _stop = stop.clone().drop_guard();
    tasks.spawn(accept(listener, house.app.clone(), stop, tasks.clone()));
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (status, head.to_ascii_lowercase(), body)
}

fn head(path: &str, key: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: it\r\nconnection: close\r\n\
         authorization: Bearer {key}\r\n{more}\r\n"
    )
}

// They had an empty body and no request id: the library that reads requests answered.
#[tokio::test]
async fn a_head_that_is_too_large_is_refused_with_a_reason_and_a_number() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let headers = |count: usize| "x-more: 1\r\n".repeat(count);
    let long = |bytes: usize| format!("x-long: {}\r\n", "a".repeat(bytes));
    for path in [SANDBOXES, "/v1/sandbox"] {
        let address = |bytes: usize| format!("{path}?{}", "a".repeat(bytes - path.len() - 1));
        for (head, status) in [
            (head(&address(ADDRESS_BYTES_MAX), &key, ""), 200),
            (head(&address(ADDRESS_BYTES_MAX + 1), &key, ""), 414),
            (head(&address(usize::from(u16::MAX) - 1), &key, ""), 414),
            // Three are there already.
            (head(path, &key, &headers(HEADERS_MAX - 3)), 200),
            (head(path, &key, &headers(HEADERS_MAX - 2)), 431),
            (head(path, &key, &headers(HEADERS_READ_MAX - 3)), 431),
            (head(path, &key, &long(HEADERS_BYTES_MAX - 1000)), 200),
            (head(path, &key, &long(HEADERS_BYTES_MAX)), 431),
            (head(path, &key, &long(4 * HEADERS_BYTES_MAX)), 431),
        ] {
            let (told, headers, body) = said(&house, &head).await;
            assert_eq!(told, status, "{path}: {body}");
            assert!(headers.contains("x-request-id: "), "{headers}");
            if status != 200 {
                assert_eq!(body["error"]["code"], "bad_request", "{body}");
                let is_bare = body.get("success").is_none();
                assert_eq!(is_bare, path == "/v1/sandbox", "{body}");
            }
        }
    }
}
