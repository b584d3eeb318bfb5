//! The OpenAPI document and the page that shows it, both from the binary: nothing is fetched from elsewhere.

use utoipa::OpenApi;
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::{ops, push, query};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Evergraph",
        description = "Fresh node embeddings and link scores of a temporal graph that keeps learning.\n\n\
            Every `/v1` answer carries `freshness`. Push events, take `end_position` from the answer and pass it \
            as `after` to read your own write. Errors have one shape, `ErrorBody`; programs look at `error_type`."
    ),
    paths(
        query::embeddings,
        query::link_scores,
        query::node,
        push::events,
        ops::status,
        ops::livez,
        ops::readyz,
        ops::healthz,
        ops::metrics,
        ops::info
    ),
    tags(
        (name = "query", description = "Questions about nodes and links"),
        (name = "events", description = "Events in"),
        (name = "operations", description = "Health, status, metrics")
    )
)]
struct Document;

/// The OpenAPI document as indented JSON.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&Document::openapi())
}

/// `/docs` and `/openapi.json`.
pub(super) fn swagger_ui() -> SwaggerUi {
    // "none": do not send the document to the validator in the internet.
    let config = Config::from("/openapi.json").validator_url("none").display_request_duration(true);
    SwaggerUi::new("/docs").url("/openapi.json", Document::openapi()).config(config)
}
