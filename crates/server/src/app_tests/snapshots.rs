//! Snapshots as clients meet them: the vendor's addresses and shapes.

use super::*;

const SNAPSHOTS: &str = "/api/v1/sandbox-rootfs-snapshots";

impl House {
    async fn snapshot(&self, key: &str, sandbox: &str, body: Value) -> Answer {
        let path = format!("{SANDBOXES}/{sandbox}/snapshots");
        self.ask(Method::POST, &path, key, body).await
    }

    async fn restore(&self, key: &str, sandbox: &str, snapshot: &Value) -> Answer {
        let path = format!("{SANDBOXES}/{sandbox}/rootfs/restore");
        let body = json!({ "snapshot_id": snapshot });
        self.ask(Method::POST, &path, key, body).await
    }
}

#[tokio::test]
async fn a_snapshot_is_made_listed_used_and_deleted() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let id = house.create(&key).await;
    let plain = house.snapshot(&key, &id, NO_BODY).await;
    assert_eq!(plain.status, StatusCode::CREATED, "{}", plain.body);
    let body = json!({
        "name": "base", "description": "before it all", "expires_at": "2100-01-02T03:04:05+00:00",
    });
    let named = house.snapshot(&key, &id, body).await;
    let made = named.data().clone();
    assert_eq!(made["sandbox_id"], id.as_str());
    assert_eq!(
        (&made["name"], &made["image"]),
        (&json!("base"), &json!("host"))
    );
    assert!(
        made["expires_at"]
            .as_str()
            .unwrap()
            .starts_with("2100-01-02T03:04:05")
    );
    let of_sandbox = format!("{SANDBOXES}/{id}/snapshots");
    for path in [of_sandbox.as_str(), SNAPSHOTS] {
        let listed = house.ask(Method::GET, path, &key, NO_BODY).await;
        assert_eq!(listed.data()["count"], 2, "{path}");
        assert_eq!(listed.data()["snapshots"][1], made, "{path}");
    }
    let snapshot = made["id"].as_str().unwrap();
    let path = format!("{SNAPSHOTS}/{snapshot}");
    let seen = house.ask(Method::GET, &path, &key, NO_BODY).await;
    assert_eq!(seen.data(), &made);

    let body = json!({ "snapshot_id": snapshot });
    let again = house.ask(Method::POST, SANDBOXES, &key, body).await;
    assert_eq!(again.status, StatusCode::CREATED, "{}", again.body);
    assert_eq!(again.data()["template"], "default");
    let body = json!({ "snapshot_id": snapshot });
    let woken = house.ask(Method::POST, "/v1/sandbox", &key, body).await;
    assert_eq!(woken.status, StatusCode::CREATED, "{}", woken.body);

    let restored = house.restore(&key, &id, &json!(snapshot)).await;
    assert_eq!(restored.status, StatusCode::OK);
    let expected = json!({ "sandbox_id": id, "snapshot_id": snapshot, "status": "running" });
    assert_eq!(restored.data(), &expected);
    let pause = format!("{SANDBOXES}/{id}/pause");
    house.ask(Method::POST, &pause, &key, NO_BODY).await;
    let restored = house.restore(&key, &id, &json!(snapshot)).await;
    assert_eq!(restored.data()["status"], "paused");

    let gone = house.ask(Method::DELETE, &path, &key, NO_BODY).await;
    assert_eq!(gone.data(), &json!({ "deleted": true }));
    for (method, path) in [(Method::GET, &path), (Method::DELETE, &path)] {
        let answer = house.ask(method, path, &key, NO_BODY).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::NOT_FOUND, "snapshot_not_found")
        );
    }
}

#[tokio::test]
async fn another_tenant_s_snapshot_is_not_there() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let reader = house.key("acme", Role::ReadOnly).await;
    let stranger = house.key("other", Role::Member).await;
    let id = house.create(&key).await;
    let own = house.create(&stranger).await;
    let made = house.snapshot(&key, &id, NO_BODY).await;
    let snapshot = made.data()["id"].clone();
    let path = format!("{SNAPSHOTS}/{}", snapshot.as_str().unwrap());
    let create = json!({ "template": "default", "snapshot_id": snapshot });
    let not_there = [
        house.ask(Method::GET, &path, &stranger, NO_BODY).await,
        house.ask(Method::DELETE, &path, &stranger, NO_BODY).await,
        house
            .ask(Method::POST, SANDBOXES, &stranger, create.clone())
            .await,
        house.restore(&stranger, &own, &snapshot).await,
    ];
    for answer in not_there {
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::NOT_FOUND, "snapshot_not_found")
        );
    }
    // Whose sandbox it is tells nothing either.
    for answer in [
        house.snapshot(&stranger, &id, NO_BODY).await,
        house.restore(&stranger, &id, &snapshot).await,
    ] {
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::NOT_FOUND, "not_found")
        );
    }
    let listed = house.ask(Method::GET, SNAPSHOTS, &stranger, NO_BODY).await;
    assert_eq!(listed.data(), &json!({ "snapshots": [], "count": 0 }));
    // Who may only read sees it, and that is all.
    assert_eq!(
        house.ask(Method::GET, &path, &reader, NO_BODY).await.data()["id"],
        snapshot
    );
    for answer in [
        house.snapshot(&reader, &id, NO_BODY).await,
        house.ask(Method::DELETE, &path, &reader, NO_BODY).await,
    ] {
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn a_snapshot_call_that_makes_no_sense_is_refused_by_name() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let id = house.create(&key).await;
    for body in [
        json!({ "name": "x".repeat(129) }),
        json!({ "name": "a\nb" }),
        json!({ "name": 7 }),
        json!({ "description": "x".repeat(5000) }),
        json!({ "expires_at": "soon" }),
        json!({ "expires_at": "2001-01-01T00:00:00Z" }),
    ] {
        let answer = house.snapshot(&key, &id, body.clone()).await;
        assert_eq!(answer.code(), "bad_request", "{body}");
    }
    let never = json!({ "name": "base", "expires_at": "0001-01-01T00:00:00Z" });
    let made = house.snapshot(&key, &id, never.clone()).await;
    assert_eq!(made.data().get("expires_at"), None);
    let again = house.snapshot(&key, &id, never).await;
    assert_eq!(
        (again.status, again.code()),
        (StatusCode::CONFLICT, "conflict")
    );
    assert_eq!(again.body["error"]["details"]["reason"], "name_taken");
    let path = format!("{SANDBOXES}/{id}/rootfs/restore");
    let answer = house.ask(Method::POST, &path, &key, json!({})).await;
    assert_eq!(answer.code(), "bad_request");
    let with_image = json!({
        "template": "default", "snapshot_id": made.data()["id"], "config": { "image": "host" },
    });
    let answer = house.ask(Method::POST, SANDBOXES, &key, with_image).await;
    assert_eq!(answer.code(), "bad_request");
}

#[tokio::test]
async fn a_copy_is_followed_line_by_line_to_its_result() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let id = house.create(&key).await;
    let sandbox = outlive_core::id::SandboxId::parse(&id).unwrap();
    house.host.write(&sandbox, "some text");
    let made = house.snapshot(&key, &id, NO_BODY).await;
    let snapshot = &made.data()["id"];
    assert_eq!(made.data()["size_bytes"], 9);
    for (path, body, result) in [
        (
            format!("{SANDBOXES}/{id}/snapshots"),
            json!({}),
            "sandbox_id",
        ),
        (
            format!("{SANDBOXES}/{id}/fork"),
            json!({}),
            "source_sandbox_id",
        ),
        (
            format!("{SANDBOXES}/{id}/rootfs/restore"),
            json!({ "snapshot_id": snapshot }),
            "snapshot_id",
        ),
        (
            SANDBOXES.to_owned(),
            json!({ "snapshot_id": snapshot }),
            "template",
        ),
    ] {
        house.host.copies.hold();
        let lines = house.follow(&path, &key, body).await;
        let (first, last) = (lines.first().unwrap(), lines.last().unwrap());
        assert_eq!(first["type"], "progress", "{path}: {lines:?}");
        assert_eq!(
            (&first["bytes"], &first["bytes_total"]),
            (&json!(4), &json!(9)),
            "{path}"
        );
        assert_eq!(last["type"], "done", "{path}: {lines:?}");
        assert!(last["result"][result].is_string(), "{path}: {lines:?}");
    }
    house.host.fail_copies(1);
    let path = format!("{SANDBOXES}/{id}/snapshots");
    let lines = house.follow(&path, &key, json!({})).await;
    assert_eq!(
        lines.last().unwrap()["error"]["code"],
        "internal_error",
        "{lines:?}"
    );
}

impl House {
    /// A call and its lines; copies are let go once the first line is there.
    async fn follow(&self, path: &str, key: &str, body: Value) -> Vec<Value> {
        let request = Request::post(path)
            .header(header::AUTHORIZATION, format!("Bearer {key}"))
            .header(header::ACCEPT, "application/x-ndjson")
            .body(Body::from(body.to_string()));
        let response = self.app.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "application/x-ndjson"
        );
        let mut body = response.into_body();
        let mut lines = Vec::new();
        while let Some(frame) = body.frame().await {
            self.host.copies.let_go();
            let line = frame.unwrap().into_data().unwrap();
            lines.push(serde_json::from_slice(&line).unwrap());
        }
        lines
    }
}
