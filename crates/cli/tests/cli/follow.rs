//! Following events: each once, in order, over whatever connection there is.
use crate::support::{
    Fake, Outlive, Reply, SANDBOX, SESSION, after, event, exited, output, session, sse,
};
use serde_json::json;

/// The numbers in the first column.
fn seqs(text: &str) -> Vec<u64> {
    text.lines()
        .map(|line| line.split('\t').next().unwrap().parse().unwrap())
        .collect()
}

// case S20, case S42, case A5: a stream that breaks in the middle of an event, then one that ends
// cleanly, then one that repeats an event.
#[tokio::test]
async fn a_broken_stream_goes_on_from_the_last_event() {
    let fake = Fake::start(|request, _| {
        if request.is("GET", SESSION) {
            return Reply::ok(200, session("running", 3));
        }
        match after(request) {
            None => {
                let whole = sse(&[
                    event(1, "session.created", &json!({})),
                    output(2, "stdout", "a\n"),
                ]);
                Reply::Broken(format!("{whole}id: 3\nevent: output\ndata: {{\"seq\":3,"))
            }
            Some(2) => Reply::Stream(sse(&[output(3, "stdout", "b\n")])),
            Some(3) => Reply::Open(sse(&[
                output(3, "stdout", "b\n"),
                output(4, "stderr", "c\n"),
                exited(5, &json!({"exit_code": 0, "reason": "stopped"})),
            ])),
            other => panic!("nobody was at {other:?}"),
        }
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("session events {SANDBOX} {SESSION} --follow --until-exit");
    let done = outlive.run(&line).await.expect(0);
    assert_eq!(seqs(&done.text()), [1, 2, 3, 4, 5]);
    let stops: Vec<_> = fake.calls("GET", "/stream").iter().map(after).collect();
    assert_eq!(stops, [None, Some(2), Some(3)]);
}

#[tokio::test]
async fn a_hole_is_asked_for_again_and_then_reported() {
    let fake = Fake::start(|_, before| match before {
        0 => Reply::Open(sse(&[output(1, "stdout", "a"), output(4, "stdout", "d")])),
        _ => Reply::Open(sse(&[output(3, "stdout", "c")])),
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let done = outlive
        .run(&format!("session events {SANDBOX} {SESSION} -f"))
        .await
        .expect(1);
    assert_eq!(seqs(&done.text()), [1]);
    assert!(done.stderr.contains("events_missing"), "{}", done.stderr);
    assert!(done.stderr.contains("last event: 1"), "{}", done.stderr);
}

#[tokio::test]
async fn a_gap_that_the_journal_reports_is_passed() {
    let fake = Fake::start(|_, before| match before {
        0 => Reply::Stream(sse(&[
            output(1, "stdout", "a"),
            event(9, "journal.gap", &json!({"reason": "lost 2-9"})),
            output(10, "stdout", "b"),
        ])),
        _ => Reply::error(404, "session_not_found", "no such session", json!(null)),
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    // The session is deleted then, which ends the stream well.
    let done = outlive
        .run(&format!("session events {SANDBOX} {SESSION} -f"))
        .await
        .expect(0);
    assert_eq!(seqs(&done.text()), [1, 9, 10]);
    assert!(done.text().contains("reason=lost 2-9"));
    assert!(done.stderr.contains("deleted"), "{}", done.stderr);
}

// case S34, case A9: what is gone is said with the way on, and never passed over.
#[tokio::test]
async fn an_expired_cursor_is_a_typed_error_with_the_next_step() {
    let fake = Fake::start(|_, _| {
        let message = "event cursor expired; earliest available sequence is 194";
        Reply::error(
            410,
            "event_cursor_expired",
            message,
            json!({"earliest": 194}),
        )
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    for flags in ["--after 8 --follow", "--after 8"] {
        let done = outlive
            .run(&format!("session events {SANDBOX} {SESSION} {flags}"))
            .await
            .expect(1);
        assert!(
            done.stderr.starts_with("error: event_cursor_expired (410)"),
            "{}",
            done.stderr
        );
        assert!(done.stderr.contains("--after 193"), "{}", done.stderr);
    }
    let done = outlive
        .run(&format!(
            "session events {SANDBOX} {SESSION} --after 8 --json"
        ))
        .await;
    let error: serde_json::Value = serde_json::from_str(&done.expect(1).stderr).unwrap();
    assert_eq!(error["error"]["code"], "event_cursor_expired");
    assert_eq!(error["error"]["details"]["earliest"], 194);
    assert_eq!(error["error"]["request_id"], "req-1");
}

#[tokio::test]
async fn a_lost_server_is_given_up_on_only_when_asked_to() {
    let fake = Fake::start(|_, before| match before {
        0 => Reply::Broken(sse(&[output(1, "stdout", "a")])),
        _ => Reply::Nothing,
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("session events {SANDBOX} {SESSION} -f --reconnect 1");
    let done = outlive.run(&line).await.expect(1);
    assert!(done.stderr.contains("error: transport"), "{}", done.stderr);
    assert!(done.stderr.contains("last event: 1"), "{}", done.stderr);
    assert!(fake.seen().len() >= 3, "it tried again");
}

#[tokio::test]
async fn json_lines_are_what_the_server_sent() {
    let fake = Fake::start(|_, before| match before {
        0 => Reply::Stream(sse(&[event(
            1,
            "session.created",
            &json!({"of_tomorrow": [1]}),
        )])),
        _ => Reply::error(404, "session_not_found", "no such session", json!(null)),
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let done = outlive
        .run(&format!("session events {SANDBOX} {SESSION} -f --json"))
        .await
        .expect(0);
    assert_eq!(done.json()["of_tomorrow"], json!([1]));
    assert_eq!(done.text().lines().count(), 1);
}

#[tokio::test]
async fn a_page_has_a_line_an_event_whatever_the_output_holds() {
    let fake = Fake::start(|_, _| {
        let events = [
            output(1, "stdout", "two\nlines\tand \u{1b}[2J\n"),
            exited(
                2,
                &json!({"exit_code": -1, "signal": "SIGTERM", "reason": "killed"}),
            ),
        ];
        Reply::ok(
            200,
            json!({"events": events, "cursor": {"earliest": 1, "latest": 2}}),
        )
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let done = outlive
        .run(&format!("session events {SANDBOX} {SESSION} --limit 5"))
        .await
        .expect(0);
    let expected = "1\t2026-01-31 12:34:56\tatt-00000000-001\toutput\tstdout\ttwo\\nlines\\tand \\u{1b}[2J\n\
                    2\t2026-01-31 12:34:56\tatt-00000000-001\tattempt.exited\t-\tsignal=SIGTERM reason=killed\n";
    assert_eq!(done.text(), expected);
    assert!(fake.seen()[0].target.ends_with("/events?limit=5"));
}
