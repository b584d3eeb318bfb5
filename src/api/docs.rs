//! The OpenAPI document and the page that shows it, both from the binary: nothing is fetched from elsewhere.

mod complete;
mod examples;

use axum::http::header::{CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::http::{HeaderMap, HeaderValue};
use serde_json::Value;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, OpenApi as Written, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::error::Problem;
use super::{
    ApiLimits, admin, anomalies, export, index, map, neighbors, operate, ops, push, query, seek, settings,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Evergraph",
        description = "Fresh node embeddings and link scores of a temporal graph that keeps learning.\n\n\
            Every `/v1` response contains `freshness`. Push events, take `end_position` from the response and pass it \
            as `min_position` to read your own write. Errors have one shape, `ErrorBody`; programs check \
            `error_type`. A request whose `Accept` lists `application/problem+json` gets errors as `Problem`. Large \
            responses to queries and pushes are compressed with gzip for clients that accept it. Maxima are those of \
            the daemon that serves this document; `/v1/info` lists them, too."
    ),
    modifiers(&Guarded),
    components(schemas(Problem)),
    paths(
        query::embeddings,
        query::link_scores,
        query::node,
        neighbors::neighbors,
        index::top_links,
        index::similar_nodes,
        map::map,
        anomalies::anomalies,
        export::embeddings,
        export::edges,
        push::events,
        ops::status,
        ops::livez,
        ops::readyz,
        ops::healthz,
        ops::metrics,
        ops::info,
        admin::checkpoint,
        admin::source,
        seek::seek,
        settings::reload,
        admin::log_level,
        admin::set_log_level,
        operate::promote,
        operate::roll_back,
        operate::training,
        operate::snapshot,
        operate::cut_log
    ),
    tags(
        (name = "query", description = "Embeddings, link scores and nodes"),
        (name = "events", description = "Events in"),
        (name = "operations", description = "Health, status, metrics"),
        (name = "admin", description = "Administration; without keys, from the local machine only")
    )
)]
struct Document;

/// What the page may load and contact: its own origin. Swagger UI sets styles from code and draws images in addresses.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Routes that need a key where the daemon has keys.
pub(super) const GUARDED: [&str; 23] = [
    "/v1/embeddings",
    "/v1/links/score",
    "/v1/links/top",
    "/v1/nodes/similar",
    "/v1/nodes/{key}",
    "/v1/nodes/{key}/neighbors",
    "/v1/map",
    "/v1/anomalies",
    "/v1/export/embeddings",
    "/v1/export/edges",
    "/v1/events",
    "/v1/status",
    "/v1/info",
    "/v1/admin/checkpoints",
    "/v1/admin/sources/{source}",
    "/v1/admin/sources/{source}/seek",
    "/v1/admin/reload",
    "/v1/admin/log-level",
    "/v1/admin/model/promote",
    "/v1/admin/model/rollback",
    "/v1/admin/training",
    "/v1/admin/snapshots",
    "/v1/admin/log/cut",
];

/// Routes that can have a separate address.
const OPERATIONS: [&str; 4] = ["/livez", "/readyz", "/healthz", "/metrics"];

/// Adds the key requirement to the routes that need one.
struct Guarded;

impl Modify for Guarded {
    fn modify(&self, document: &mut Written) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A key of the daemon's `api.keys_file`; without that file no key is needed."));
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme("key", SecurityScheme::Http(scheme.build()));
        for path in GUARDED {
            let Some(item) = document.paths.paths.get_mut(path) else { continue };
            item.get.iter_mut().chain(item.post.iter_mut()).chain(item.put.iter_mut()).for_each(guard);
        }
    }
}

fn guard(operation: &mut Operation) {
    operation.security = Some(vec![SecurityRequirement::new("key", Vec::<String>::new())]);
    for (status, description) in [
        ("401", "No key, or an unknown one"),
        ("403", "The key has another role"),
        ("429", "The key exceeds its rate limit"),
    ] {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        let response = ResponseBuilder::new().description(description).content("application/json", body);
        operation.responses.responses.entry(status.to_owned()).or_insert_with(|| response.build().into());
    }
}

/// The OpenAPI document of a daemon with default limits, as indented JSON.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&written(&ApiLimits::default())?)
}

fn written(limits: &ApiLimits) -> Result<Value, serde_json::Error> {
    let mut document = serde_json::to_value(Document::openapi())?;
    complete::complete(&mut document, limits);
    Ok(document)
}

/// All routes.
pub(super) fn document(limits: &ApiLimits) -> Value {
    // A test writes it.
    written(limits).unwrap_or_default()
}

/// The routes of an address that leaves health checks and metrics to another one.
pub(super) fn document_without_operations(limits: &ApiLimits) -> Value {
    let mut document = document(limits);
    if let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) {
        paths.retain(|path, _| !OPERATIONS.contains(&path.as_str()));
    }
    document
}

/// `/docs` and `/openapi.json`, which is `document`.
pub(super) fn swagger_ui(document: Value) -> SwaggerUi {
    // "none": do not send the document to the validator in the internet.
    let config = Config::from("/openapi.json").validator_url("none").display_request_duration(true);
    SwaggerUi::new("/docs").external_url_unchecked("/openapi.json", document).config(config)
}

/// Adds what keeps the page from other origins: it shares its own with the console, which keeps a key there.
pub(super) fn protect(headers: &mut HeaderMap) {
    for (name, value) in
        [(CONTENT_SECURITY_POLICY, POLICY), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (X_FRAME_OPTIONS, "DENY")]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
