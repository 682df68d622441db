//! The routes as clients meet them, over a fake host.

mod snapshots;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode, header},
};
use http_body_util::BodyExt as _;
use outlive_api::keys::Role;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use crate::{
    app::app,
    auth::Auth,
    catalog::Catalog,
    clock,
    config::TenantLimits,
    dialect::supervised::Supervised,
    images::{ImagesDir, Library},
    keys::Keys,
    rate::Rates,
    runtime::fake::{FakeHost, FakeRuntime},
    sandboxes::Engine,
    store::{Owner, Store, sqlite::SqliteStore},
    templates::Templates,
    upgrade::Upgrades,
};

struct House {
    host: Arc<FakeHost>,
    auth: Arc<Auth>,
    app: Router,
}

/// An answer: status, `Retry-After` and request id, body.
struct Answer {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: Value,
}

impl Answer {
    fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    fn data(&self) -> &Value {
        assert_eq!(self.body["success"], true, "{}", self.body);
        &self.body["data"]
    }
}

impl House {
    async fn open(requests_per_second: u32) -> Self {
        let host = FakeHost::new(tokio::runtime::Handle::current());
        let sqlite = SqliteStore::open(&host.dir().join("outlive.db"))
            .await
            .unwrap();
        let sqlite = Arc::new(sqlite);
        let store: Arc<dyn Store> = Arc::<SqliteStore>::clone(&sqlite);
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let engine = Engine::new(
            Arc::clone(&store),
            Arc::new(FakeRuntime(Arc::clone(&host))),
            host.places().clone(),
            tasks.clone(),
            stop.clone(),
            TenantLimits {
                sandboxes_max: 100,
                ..TenantLimits::default()
            },
        );
        let auth = Arc::new(Auth::new(
            Arc::clone(&store),
            Rates::new(requests_per_second),
        ));
        tasks.spawn(Arc::clone(&auth).expire());
        let supervised = Supervised::new(
            Arc::new(engine.clone()),
            Arc::default(),
            stop,
            tasks.clone(),
        );
        let images = Arc::new(ImagesDir::open(host.dir()).unwrap());
        let library = Library::new(images, sqlite, CancellationToken::new());
        let keys = Keys {
            auth: Arc::clone(&auth),
            store,
        };
        Self {
            host,
            app: app(
                engine.clone(),
                Arc::clone(&auth),
                keys,
                supervised,
                Arc::default(),
                Upgrades::new(engine, std::env::current_exe().unwrap()),
                Catalog::new(Arc::new(library), Templates::default()),
            ),
            auth,
        }
    }

    async fn key(&self, owner: &str, role: Role) -> String {
        let owner = Owner::parse(owner).unwrap();
        let issued = self.auth.issue(owner, role, String::new(), None).await;
        issued.unwrap().1
    }

    async fn ask(&self, method: Method, path: &str, key: &str, body: Value) -> Answer {
        self.ask_as(method, path, key, body, "test").await
    }

    async fn ask_as(
        &self,
        method: Method,
        path: &str,
        key: &str,
        body: Value,
        user_agent: &str,
    ) -> Answer {
        let body = if body.is_null() {
            Body::empty()
        } else {
            Body::from(body.to_string())
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::USER_AGENT, user_agent);
        if !key.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let response = self
            .app
            .clone()
            .oneshot(request.body(body).unwrap())
            .await
            .unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }

    async fn create(&self, key: &str) -> String {
        let body = json!({ "template": "default" });
        let answer = self.ask(Method::POST, SANDBOXES, key, body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.data()["sandbox_id"].as_str().unwrap().to_owned()
    }
}

const SANDBOXES: &str = "/api/v1/sandboxes";
const NO_BODY: Value = Value::Null;

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
async fn an_id_that_is_no_text_is_an_unknown_address() {
    let house = House::open(1000).await;
    let admin = house.key("acme", Role::Admin).await;
    for (method, path) in [
        (Method::GET, "/api/v1/sandboxes/%FF"),
        (Method::DELETE, "/v1/keys/%FF"),
        (Method::GET, "/api/v1/sandboxes/%FF/sessions"),
    ] {
        let answer = house.ask(method, path, &admin, NO_BODY).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.code(), "not_found", "{path}");
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
async fn every_client_finds_its_fields_and_its_status() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let id = house.create(&key).await;
    let sandbox = format!("{SANDBOXES}/{id}");
    let shown = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    for field in [
        "id",
        "template_id",
        "team_id",
        "status",
        "paused",
        "auto_resume",
        "pod_name",
        "runtime_id",
        "runtime_generation",
        "claimed_at",
        "created_at",
        "updated_at",
        "expires_at",
        "hard_expires_at",
    ] {
        assert!(!shown.data()[field].is_null(), "{field}");
    }
    assert_eq!(shown.data()["expires_at"], "0001-01-01T00:00:00Z");
    let status = house
        .ask(Method::GET, &format!("{sandbox}/status"), &key, NO_BODY)
        .await;
    assert_eq!(status.data()["user_id"], "acme");

    // Pause, from the client that sends a body; resume raises the generation by one.
    let path = format!("{sandbox}/pause");
    let paused = house
        .ask(Method::POST, &path, &key, json!({ "memory": false }))
        .await;
    assert_eq!(paused.data()["paused"], true);
    let shown = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    assert_eq!(
        (&shown.data()["status"], &shown.data()["paused"]),
        (&json!("paused"), &json!(true))
    );
    let path = format!("{sandbox}/resume");
    let resumed = house.ask(Method::POST, &path, &key, NO_BODY).await;
    assert_eq!(resumed.data()["resumed"], true);
    let shown = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    assert_eq!(shown.data()["runtime_generation"], 2);

    // One client takes only 202, another only 200.
    let other = house.create(&key).await;
    let path = format!("{SANDBOXES}/{other}");
    let gone = house.ask_as(Method::DELETE, &path, &key, NO_BODY, "python-httpx/0.28.1");
    assert_eq!(gone.await.status, StatusCode::ACCEPTED);
    let gone = house.ask_as(
        Method::DELETE,
        &sandbox,
        &key,
        NO_BODY,
        "Go-http-client/2.0",
    );
    assert_eq!(gone.await.status, StatusCode::OK);
    let gone = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    assert_eq!(
        (gone.status, gone.code()),
        (StatusCode::NOT_FOUND, "not_found")
    );
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(house.create(&key).await);
    }
    let path = format!("{SANDBOXES}/{}/pause", ids[1]);
    house.ask(Method::POST, &path, &key, NO_BODY).await;
    let list = |query: &str| {
        let path = format!("{SANDBOXES}?{query}");
        let (house, key) = (&house, &key);
        async move {
            let answer = house.ask(Method::GET, &path, key, NO_BODY).await;
            let ids: Vec<_> = answer.data()["sandboxes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["id"].as_str().unwrap().to_owned())
                .collect();
            (ids, answer.data()["has_more"].as_bool().unwrap())
        }
    };
    assert_eq!(list("limit=2").await, (ids[..2].to_vec(), true));
    assert_eq!(list("limit=2&offset=2").await, (ids[2..].to_vec(), false));
    assert_eq!(list("status=paused").await, (vec![ids[1].clone()], false));
    assert_eq!(
        list("paused=false&limit=1").await,
        (vec![ids[0].clone()], true)
    );
    assert_eq!(list("status=paused&paused=false").await, (vec![], false));
    assert_eq!(list("template_id=none").await, (vec![], false));
    for bad in [
        "limit=0",
        "limit=201",
        "limit=x",
        "offset=-1",
        "status=odd",
        "paused=maybe",
    ] {
        let path = format!("{SANDBOXES}?{bad}");
        let answer = house.ask(Method::GET, &path, &key, NO_BODY).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::BAD_REQUEST, "bad_request"),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let config = |config: Value| json!({ "template": "default", "config": config });
    for (body, code) in [
        (json!({}), "bad_request"),
        (json!({ "template": " " }), "bad_request"),
        (json!({ "template": 7 }), "bad_request"),
        (json!({ "template": "other" }), "not_found"),
        (
            json!({ "template": "default", "snapshot_id": "s" }),
            "snapshot_not_found",
        ),
        (config(json!({ "ttl": -1 })), "bad_request"),
        (config(json!({ "ttl": "1" })), "bad_request"),
        (config(json!({ "hard_ttl": i64::MAX })), "bad_request"),
        (config(json!({ "env_vars": { "A=B": "" } })), "bad_request"),
        (config(json!({ "env_vars": { "": "" } })), "bad_request"),
        (
            config(json!({ "resources": { "memory": "lots" } })),
            "bad_request",
        ),
        (config(json!({ "resources": { "pids": 0 } })), "bad_request"),
        (
            config(json!({ "network": { "mode": "tunnel" } })),
            "bad_request",
        ),
        (config(json!({ "user": "a b" })), "bad_request"),
    ] {
        let answer = house.ask(Method::POST, SANDBOXES, &key, body.clone()).await;
        assert_eq!(answer.code(), code, "{body}");
    }
    let id = house.create(&key).await;
    for name in ["files", "services"] {
        let path = format!("{SANDBOXES}/{id}/{name}");
        let answer = house.ask(Method::POST, &path, &key, json!({})).await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED, "{name}");
    }
    let answer = house.ask(Method::PATCH, SANDBOXES, &key, NO_BODY).await;
    assert_eq!(answer.code(), "method_not_allowed");
    let answer = house.ask(Method::GET, "/nowhere", &key, NO_BODY).await;
    assert_eq!(answer.code(), "not_found");
    let huge = json!({ "template": "x".repeat(9 << 20) });
    let answer = house.ask(Method::POST, SANDBOXES, &key, huge).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
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
