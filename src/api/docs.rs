//! The OpenAPI document and the page that shows it, both from the binary: nothing is fetched from elsewhere.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, OpenApi as Written, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi};
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
    modifiers(&Guarded),
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

/// Routes whose users need a key where the daemon has keys.
const GUARDED: [&str; 6] =
    ["/v1/embeddings", "/v1/links/score", "/v1/nodes/{key}", "/v1/events", "/v1/status", "/info"];

/// Says of the routes that ask for a key that they do.
struct Guarded;

impl Modify for Guarded {
    fn modify(&self, document: &mut Written) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "A key of the daemon's `api.keys_file`; without that file no key is asked for.",
        ));
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme("key", SecurityScheme::Http(scheme.build()));
        for path in GUARDED {
            let Some(item) = document.paths.paths.get_mut(path) else { continue };
            item.get.iter_mut().chain(item.post.iter_mut()).for_each(guard);
        }
    }
}

fn guard(operation: &mut Operation) {
    operation.security = Some(vec![SecurityRequirement::new("key", Vec::<String>::new())]);
    for (status, description) in [("401", "No key, or an unknown one"), ("403", "The key has another role")] {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        let response = ResponseBuilder::new().description(description).content("application/json", body);
        operation.responses.responses.insert(status.to_owned(), response.build().into());
    }
}

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
