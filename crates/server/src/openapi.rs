//! The description of the API, OpenAPI 3.1: generated from the handlers and shapes, served at
//! `/openapi.json` and `/openapi.yaml`, and kept in the repository as `openapi.yaml`.
//!
//! Session calls carry their description beside their handler. The calls of sandboxes, keys and
//! the server itself are described here.

mod described;

use std::sync::LazyLock;

use axum::{
    Router,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use outlive_api::{
    context::{ContextClientMessage, ContextServerMessage},
    error::ErrorEnvelope,
    image::ImageFormat,
    ws::{ClientMessage, ServerMessage},
};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        RefOr,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use crate::dialect::{named, supervised};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "outlive",
        description = "Sessions that outlive the client: supervised processes in sandboxes, with a replayable journal of everything they did.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "sessions", description = "Supervised commands of a sandbox, their events and attachments"),
        (name = "contexts", description = "One-shot commands and interpreters of a sandbox"),
        (name = "sandboxes", description = "Places with a disk, an owner and a lifetime"),
        (name = "snapshots", description = "Files of a sandbox as of one instant"),
        (name = "named sandboxes", description = "The same places, which fall asleep and wake where they stood"),
        (name = "images", description = "What sandboxes are made from"),
        (name = "keys", description = "API keys; for admins"),
        (name = "server", description = "The server itself"),
    ),
    paths(
        described::create_sandbox, described::list_sandboxes, described::get_sandbox, described::update_sandbox, described::delete_sandbox,
        described::sandbox_status, described::pause_sandbox, described::resume_sandbox, described::refresh_sandbox, described::fork_sandbox,
        described::create_snapshot, described::list_sandbox_snapshots, described::restore_sandbox,
        described::list_snapshots, described::get_snapshot, described::delete_snapshot,
        described::get_network, described::update_network,
        described::create_key, described::list_keys, described::revoke_key,
        described::upgrade_sandboxes,
        described::list_images, described::import_image, described::pull_image, described::remove_image,
        described::metadata, described::healthz, described::readyz, described::metrics,
    ),
    components(schemas(ErrorEnvelope, ClientMessage, ServerMessage, ContextClientMessage, ContextServerMessage, ImageFormat)),
    security(("bearerAuth" = [])),
    modifiers(&BearerAuth),
)]
struct Rest;

struct BearerAuth;

impl Modify for BearerAuth {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("An API key"))
            .build();
        openapi
            .components
            .get_or_insert_default()
            .add_security_scheme("bearerAuth", SecurityScheme::Http(scheme));
    }
}

/// The whole description.
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = Rest::openapi();
    document.merge(supervised::routes().into_openapi());
    describe_context_sessions(&mut document);
    document.merge(named::routes().into_openapi());
    document
}

/// A context as the session that it is has the session's calls at an address of its own.
fn describe_context_sessions(document: &mut utoipa::openapi::OpenApi) {
    const SESSIONS: &str = "/api/v1/sandboxes/{id}/sessions/{session_id}";
    let paths = &mut document.paths.paths;
    let described: Vec<_> = paths
        .iter()
        .filter_map(|(path, item)| Some((path.strip_prefix(SESSIONS)?.to_owned(), item.clone())))
        .collect();
    for (rest, mut item) in described {
        match rest.as_str() {
            // Its specification is the context's, and so is a new start.
            "" => item.put = None,
            "/attempts" => item.post = None,
            _ => {}
        }
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
        ];
        for operation in operations.into_iter().filter_map(Option::as_mut) {
            let name = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("{name}OfContext"));
            operation.tags = Some(vec!["contexts".to_owned()]);
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter
                    && parameter.name == "session_id"
                {
                    "ctx_id".clone_into(&mut parameter.name);
                    parameter.description = Some("The context".to_owned());
                }
            }
        }
        paths.insert(format!("{}{rest}", supervised::CONTEXT_SESSION), item);
    }
}

/// The description as YAML, as it lies in the repository.
pub fn yaml() -> Result<String, String> {
    serde_saphyr::to_string(&document()).map_err(|error| error.to_string())
}

static JSON: LazyLock<Result<String, String>> =
    LazyLock::new(|| serde_json::to_string(&document()).map_err(|error| error.to_string()));

static YAML: LazyLock<Result<String, String>> = LazyLock::new(yaml);

/// `/openapi.json` and `/openapi.yaml`.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route(
            "/openapi.json",
            get(async || served(&JSON, "application/json")),
        )
        .route(
            "/openapi.yaml",
            get(async || served(&YAML, "application/yaml")),
        )
}

fn served(text: &'static LazyLock<Result<String, String>>, content_type: &'static str) -> Response {
    match &**text {
        Ok(text) => {
            let kind = HeaderValue::from_static(content_type);
            ([(header::CONTENT_TYPE, kind)], text.as_str()).into_response()
        }
        Err(error) => {
            use outlive_api::error::{ApiError, ErrorCode};
            let error = ApiError::new(ErrorCode::InternalError, error.clone());
            crate::http::reply::Failure(error).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_file_in_the_repository_is_fresh() {
        // UPDATE_EXPECT=1 cargo test -p outlive-server openapi writes it.
        expect_test::expect_file!["../../../openapi.yaml"].assert_eq(&yaml().unwrap());
    }

    #[test]
    fn every_operation_has_a_name_of_its_own_and_an_answer_for_errors() {
        let document = serde_json::to_value(document()).unwrap();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        let mut names = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name.to_owned()), "{name} twice");
                let open = operation["security"].is_array();
                let errors = operation["responses"].get("default").is_some();
                assert!(open || errors, "{method} {path}");
            }
        }
        assert!(names.len() >= 45, "some are missing: {names:?}");
    }

    // The format of an import was one that nobody had described: tools made up no such call.
    #[test]
    fn whatever_is_referred_to_is_described() {
        let document = serde_json::to_value(document()).unwrap();
        let mut left = vec![&document];
        let mut count = 0;
        while let Some(value) = left.pop() {
            match value {
                serde_json::Value::Object(fields) => {
                    if let Some(target) = fields.get("$ref").and_then(|it| it.as_str()) {
                        let path = target.strip_prefix('#').unwrap();
                        assert!(document.pointer(path).is_some(), "{target} is nowhere");
                        count += 1;
                    }
                    left.extend(fields.values());
                }
                serde_json::Value::Array(items) => left.extend(items),
                _ => {}
            }
        }
        assert!(count > 100, "{count} references");
    }
}
