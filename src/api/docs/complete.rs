//! What the OpenAPI document says beyond what handlers and types declare: headers, the shape of every other error,
//! problem details, examples, and the limits of this daemon.

use serde_json::{Map, Value, json};

use super::examples;
use crate::api::ApiLimits;
use crate::api::arrow::{ARROW_STREAM, Column, columns_of};
use crate::api::error::PROBLEM_JSON;
use crate::api::map::NODES_MAX;

const JSON: &str = "application/json";
const NDJSON: &str = "application/x-ndjson";

/// Completes the document of a daemon with these limits.
pub(super) fn complete(document: &mut Value, limits: &ApiLimits) {
    document["components"]["headers"] = headers();
    bound_schemas(document, limits);
    for item in members(&mut document["paths"]) {
        for operation in members(item) {
            bound_parameters(operation, limits);
            complete_responses(operation);
            add_examples(operation);
            add_columns(operation);
        }
    }
}

/// The values of an object; none of any other value.
fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(Map::values_mut)
}

fn headers() -> Value {
    json!({
        "RequestId": {
            "description": "The id of the request: the client's `x-request-id` if it is printable and at most 128 \
                bytes long, else one that the daemon made. The daemon's log has it.",
            "required": true,
            "schema": { "type": "string", "minLength": 1, "maxLength": 128 }
        },
        "RetryAfter": {
            "description": "Seconds after which to send the request again.",
            "schema": { "type": "integer", "minimum": 1 }
        },
        "Authenticate": {
            "description": "How to authenticate.",
            "schema": { "type": "string", "enum": ["Bearer"] }
        }
    })
}

/// The limits on bodies.
fn bound_schemas(document: &mut Value, limits: &ApiLimits) {
    let schemas = &mut document["components"]["schemas"];
    for (schema, list) in [("EmbeddingsRequest", "nodes"), ("ScoresRequest", "pairs")] {
        let properties = &mut schemas[schema]["properties"];
        properties[list]["maxItems"] = json!(limits.batch_items);
        properties["wait_ms"]["maximum"] = json!(limits.wait.as_millis());
    }
    let lists = schemas["EventsDocument"]["oneOf"].as_array_mut().into_iter().flatten();
    lists.filter(|one| one["type"] == "array").for_each(|many| many["maxItems"] = json!(limits.batch_items));
}

/// The limits on parameters of queries.
fn bound_parameters(operation: &mut Value, limits: &ApiLimits) {
    let is_map = operation["operationId"] == "compute_map";
    let most = if is_map { limits.batch_items.min(NODES_MAX) } else { limits.batch_items };
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        match parameter["name"].as_str() {
            Some("neighbors" | "limit") => parameter["schema"]["maximum"] = json!(most),
            Some("wait_ms") => parameter["schema"]["maximum"] = json!(limits.wait.as_millis()),
            _ => {}
        }
    }
}

fn complete_responses(operation: &mut Value) {
    let error = json!({
        "description": "Any other error",
        "content": { JSON: { "schema": { "$ref": "#/components/schemas/ErrorBody" } } }
    });
    let responses = &mut operation["responses"];
    if responses.get("default").is_none() {
        responses["default"] = error;
    }
    for (status, response) in responses.as_object_mut().into_iter().flatten() {
        let header = |name: &str| json!({ "$ref": format!("#/components/headers/{name}") });
        response["headers"]["x-request-id"] = header("RequestId");
        if response["content"][JSON]["schema"]["$ref"] != "#/components/schemas/ErrorBody" {
            continue;
        }
        response["content"][PROBLEM_JSON] = json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
        if matches!(status.as_str(), "429" | "503") {
            response["headers"]["retry-after"] = header("RetryAfter");
        }
        if status == "401" {
            response["headers"]["www-authenticate"] = header("Authenticate");
        }
        if status == "default" {
            response["content"][JSON]["example"] = examples::of("error")["response"].take();
            response["content"][PROBLEM_JSON]["example"] = examples::of("problem")["response"].take();
        }
    }
}

/// What a daemon received and returned.
fn add_examples(operation: &mut Value) {
    let mut example = examples::of(operation["operationId"].as_str().unwrap_or_default());
    if let Some(content) = operation.pointer_mut("/requestBody/content").and_then(Value::as_object_mut) {
        if let Some(lines) = content.get_mut(NDJSON) {
            let events = example["request"].as_array().into_iter().flatten();
            lines["example"] = events.map(|event| format!("{event}\n")).collect::<String>().into();
        }
        if let Some(body) = content.get_mut(JSON) {
            body["example"] = example["request"].take();
        }
    }
    if let Some(content) = operation.pointer_mut("/responses/200/content").and_then(Value::as_object_mut) {
        for media in content.values_mut() {
            media["example"] = example["response"].clone();
        }
    }
}

/// The form in columns of the responses that have one.
fn add_columns(operation: &mut Value) {
    let Some(columns) = operation["operationId"].as_str().and_then(columns_of) else { return };
    let line = |column: &Column| {
        let Column { name, kind, nullable, words } = column;
        let or_null = if *nullable { ", or null" } else { "" };
        format!("\n- `{name}` ({}{or_null}): {words}.", kind.name())
    };
    let columns: String = columns.iter().map(line).collect();
    let content = &mut operation["responses"]["200"]["content"];
    let what = match content.get(JSON) {
        Some(_) => {
            "For a request whose `Accept` lists this media type: a stream of the Arrow IPC format with one record \
             batch, whose columns hold the same bits as the JSON. The rest of the JSON document, all but the rows, \
             stands as JSON in the metadata of the schema, under the key `evergraph`."
        }
        None => "A stream of the Arrow IPC format.",
    };
    let description = format!("{what} Columns:\n{columns}");
    let schema = json!({ "type": "string", "format": "binary", "description": description });
    content[ARROW_STREAM] = json!({ "schema": schema });
}
