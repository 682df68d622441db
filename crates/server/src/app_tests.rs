//! The routes as clients meet them, over a fake host.

mod access;
mod heads;
mod sandboxes;
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
    reserve::Reserve,
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
            Arc::new(Reserve::none()),
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
