//! Who may do what: keys, roles, tenants.

use super::*;

#[tokio::test]
async fn nothing_is_told_without_a_valid_key() {
    let house = House::open(1000).await;
    let member = house.key("acme", Role::Member).await;
    let id = house.create(&member).await;
    let sandbox = format!("{SANDBOXES}/{id}");
    for key in ["", "wrong", "olv_0000"] {
        for path in [
            SANDBOXES,
            &sandbox,
            "/v1/keys",
            "/api/v1/sandboxes/x/sessions",
        ] {
            let answer = house.ask(Method::GET, path, key, NO_BODY).await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(answer.code(), "unauthorized");
        }
    }
    // A key in a query is no key.
    let path = format!("{SANDBOXES}?token={member}");
    let answer = house.ask(Method::GET, &path, "", NO_BODY).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    for path in ["/healthz", "/readyz", "/metadata"] {
        let answer = house.ask(Method::GET, path, "", NO_BODY).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert!(answer.headers.contains_key("x-request-id"), "{path}");
    }
}

#[tokio::test]
async fn another_tenants_sandbox_is_not_there() {
    let house = House::open(1000).await;
    let ours = house.key("acme", Role::Member).await;
    let theirs = house.key("other", Role::Admin).await;
    let id = house.create(&ours).await;
    let sandbox = format!("{SANDBOXES}/{id}");
    let calls = [
        (Method::GET, sandbox.clone()),
        (Method::PUT, sandbox.clone()),
        (Method::DELETE, sandbox.clone()),
        (Method::GET, format!("{sandbox}/status")),
        (Method::POST, format!("{sandbox}/pause")),
        (Method::POST, format!("{sandbox}/resume")),
        (Method::POST, format!("{sandbox}/refresh")),
        (Method::GET, format!("{sandbox}/sessions")),
    ];
    for (method, path) in calls {
        let answer = house.ask(method.clone(), &path, &theirs, json!({})).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{method} {path}");
    }
    let list = house.ask(Method::GET, SANDBOXES, &theirs, NO_BODY).await;
    assert_eq!(list.data()["sandboxes"], json!([]));
    let answer = house.ask(Method::GET, &sandbox, &ours, NO_BODY).await;
    assert_eq!(answer.data()["status"], "running");
}

#[tokio::test]
async fn a_role_is_what_it_says() {
    let house = House::open(1000).await;
    let member = house.key("acme", Role::Member).await;
    let reader = house.key("acme", Role::ReadOnly).await;
    let id = house.create(&member).await;
    let sandbox = format!("{SANDBOXES}/{id}");
    let read = house.ask(Method::GET, &sandbox, &reader, NO_BODY).await;
    assert_eq!(read.status, StatusCode::OK);
    let calls = [
        (Method::POST, SANDBOXES.to_owned()),
        (Method::DELETE, sandbox.clone()),
        (Method::POST, format!("{sandbox}/pause")),
        (Method::POST, format!("{sandbox}/sessions")),
    ];
    for (method, path) in calls {
        let answer = house.ask(method, &path, &reader, json!({})).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::FORBIDDEN, "forbidden")
        );
    }
    let answer = house.ask(Method::GET, "/v1/keys", &member, NO_BODY).await;
    assert_eq!(answer.code(), "forbidden");
}

#[tokio::test]
async fn keys_are_shown_once_and_stop_working_when_revoked() {
    let house = House::open(1000).await;
    let admin = house.key("acme", Role::Admin).await;
    let body = json!({ "owner": "new", "role": "member", "name": "ci" });
    let made = house.ask(Method::POST, "/v1/keys", &admin, body).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let (id, key) = (made.data()["id"].clone(), made.data()["key"].clone());
    let (id, key) = (id.as_str().unwrap(), key.as_str().unwrap());
    let list = house.ask(Method::GET, "/v1/keys", &admin, NO_BODY).await;
    assert!(
        !list.body.to_string().contains(key),
        "a list shows no secret"
    );
    assert!(list.body.to_string().contains(id));
    house.create(key).await;
    let path = format!("/v1/keys/{id}");
    let revoked = house.ask(Method::DELETE, &path, &admin, NO_BODY).await;
    assert_eq!(revoked.status, StatusCode::OK);
    let answer = house.ask(Method::GET, SANDBOXES, key, NO_BODY).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    let answer = house
        .ask(Method::DELETE, "/v1/keys/none", &admin, NO_BODY)
        .await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    for bad in [
        json!({}),
        json!({ "owner": "", "role": "member" }),
        json!({ "owner": "a b", "role": "member" }),
        json!({ "owner": "a", "role": "king" }),
        json!({ "owner": "a", "role": "member", "expires_at": "yesterday" }),
        json!({ "owner": "a", "role": "member", "expires_at": "2001-01-01T00:00:00Z" }),
    ] {
        let answer = house
            .ask(Method::POST, "/v1/keys", &admin, bad.clone())
            .await;
        assert_eq!(answer.code(), "bad_request", "{bad}");
    }
}

#[tokio::test]
async fn a_key_that_expires_ends_what_it_opened() {
    let house = House::open(1000).await;
    let owner = Owner::parse("acme").unwrap();
    let at = clock::now() + std::time::Duration::from_millis(300);
    let issued = house
        .auth
        .issue(owner, Role::Member, String::new(), Some(at));
    let (_, key) = issued.await.unwrap();
    let caller = house.auth.caller(&key).await.unwrap().unwrap();
    caller.revoked.cancelled().await;
    assert!(clock::now() >= at);
    let answer = house.ask(Method::GET, SANDBOXES, &key, NO_BODY).await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_tenant_that_hurries_is_told_when_to_come_again() {
    let house = House::open(2).await;
    let key = house.key("acme", Role::Member).await;
    let mut last = house.ask(Method::GET, SANDBOXES, &key, NO_BODY).await;
    for _ in 0..10 {
        last = house.ask(Method::GET, SANDBOXES, &key, NO_BODY).await;
    }
    assert_eq!(
        (last.status, last.code()),
        (StatusCode::TOO_MANY_REQUESTS, "quota_exceeded")
    );
    assert_eq!(last.headers[header::RETRY_AFTER], "1");
}

#[tokio::test]
async fn only_an_admin_upgrades_and_only_to_an_executable() {
    let house = House::open(1000).await;
    let member = house.key("acme", Role::Member).await;
    let admin = house.key("operators", Role::Admin).await;
    let id = house.create(&member).await;
    let refused = [
        (&member, json!({}), StatusCode::FORBIDDEN, "only admins"),
        (
            &admin,
            json!({ "agent": "agent" }),
            StatusCode::BAD_REQUEST,
            "absolute",
        ),
        (
            &admin,
            json!({ "agent": "/nowhere/agent" }),
            StatusCode::BAD_REQUEST,
            "/nowhere/agent",
        ),
        (
            &admin,
            json!({ "agent": "/" }),
            StatusCode::BAD_REQUEST,
            "not an executable",
        ),
        (
            &admin,
            json!({ "agent": "/etc/passwd" }),
            StatusCode::BAD_REQUEST,
            "ELF",
        ),
        (
            &admin,
            json!({ "sandboxes": ["sbx-none"] }),
            StatusCode::NOT_FOUND,
            "sbx-none",
        ),
        (
            &admin,
            json!({ "sandboxes": 3 }),
            StatusCode::BAD_REQUEST,
            "",
        ),
    ];
    for (key, body, status, says) in refused {
        let answer = house.ask(Method::POST, "/v1/upgrade", key, body).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
    }
    // This runtime says no, and the answer says so of this sandbox of another owner.
    let body = json!({ "sandboxes": [id] });
    let answer = house.ask(Method::POST, "/v1/upgrade", &admin, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let told = &answer.data()["sandboxes"];
    assert_eq!(told.as_array().unwrap().len(), 1);
    assert_eq!(told[0]["sandbox_id"], id.as_str());
    assert_eq!(told[0]["upgraded"], false);
    assert!(told[0]["reason"].is_string());
}
