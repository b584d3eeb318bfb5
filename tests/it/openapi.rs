//! The OpenAPI document as a client and a generator of clients read it: names, types, examples, limits.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use evergraph::api::REJECTION_REASONS;
use evergraph::daemon::SOURCE_STATES;
use evergraph::ingest::rejection::Reason;
use serde_json::{Map, Value, json};

use crate::arrow::ARROW;
use crate::contract::{self, DOCUMENT};
use crate::live::Live;
use crate::process::{Process, Start};

/// What an operation does, by the first word of its name.
const VERBS: [&str; 16] = [
    "check", "compute", "create", "cut", "export", "find", "get", "list", "promote", "push", "reload",
    "roll", "score", "seek", "set", "update",
];

/// A method, a path, and what the document says of them.
struct Operation {
    method: String,
    path: String,
    document: Value,
}

impl Operation {
    fn name(&self) -> &str {
        self.document["operationId"].as_str().unwrap_or_default()
    }

    /// The content of the response to the example, by media type; without the form in columns, which is no text.
    fn response(&self) -> impl Iterator<Item = (&String, &Value)> {
        let content = self.document["responses"]["200"]["content"].as_object().unwrap();
        content.iter().filter(|(media, _)| *media != ARROW)
    }

    fn request(&self) -> Option<&Value> {
        self.document.pointer("/requestBody/content/application~1json")
    }

    /// The path with the examples of its parameters, and those of the query that have one.
    fn example_path(&self) -> String {
        let (mut path, mut query) = (self.path.clone(), Vec::new());
        for parameter in self.document["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let example = match &parameter["example"] {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            match parameter["in"].as_str() {
                Some("path") => path = path.replace(&format!("{{{name}}}"), &example),
                _ => query.push(format!("{name}={example}")),
            }
        }
        if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
    }
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, document) in methods.as_object().unwrap() {
            all.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                document: document.clone(),
            });
        }
    }
    all
}

#[test]
fn every_operation_is_named_by_a_verb() {
    let all = operations(&DOCUMENT);
    let names: BTreeSet<&str> = all.iter().map(Operation::name).collect();
    assert_eq!(names.len(), all.len(), "each has a name of its own");
    for name in names {
        assert!(VERBS.contains(&name.split('_').next().unwrap()), "{name} begins with none of {VERBS:?}");
    }
}

#[test]
fn every_response_has_its_headers_and_every_error_its_shapes() {
    for operation in operations(&DOCUMENT) {
        let responses = operation.document["responses"].as_object().unwrap();
        assert!(responses.contains_key("default"), "{}", operation.name());
        for (status, response) in responses {
            let place = format!("{} {status}", operation.name());
            assert_eq!(
                response["headers"]["x-request-id"],
                json!({ "$ref": "#/components/headers/RequestId" }),
                "{place}"
            );
            let content = response["content"].as_object().unwrap();
            let json = content.get("application/json").map(|json| &json["schema"]["$ref"]);
            if json != Some(&json!("#/components/schemas/ErrorBody")) {
                continue;
            }
            assert!(content.contains_key("application/problem+json"), "{place}");
            let retry = matches!(status.as_str(), "429" | "503");
            assert_eq!(response["headers"].get("retry-after").is_some(), retry, "{place}");
        }
    }
}

#[test]
fn every_reference_of_the_document_leads_somewhere() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(&DOCUMENT, &mut found);
    assert!(found.len() > 50, "{found:?}");
    for reference in found {
        assert!(DOCUMENT.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}

#[test]
fn words_for_programs_are_typed() {
    let schemas = &DOCUMENT["components"]["schemas"];
    let reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(REJECTION_REASONS.to_vec(), reasons, "src/api/events.rs lists the reasons of ingest");
    assert_eq!(schemas["RejectionReason"]["enum"], json!(reasons));
    assert_eq!(schemas["SourceState"]["enum"], json!(SOURCE_STATES));
    for (schema, member, typed) in [
        ("ErrorBody", "error_type", "ErrorType"),
        ("Problem", "error_type", "ErrorType"),
        ("Rejected", "reason", "RejectionReason"),
        ("MissingEmbedding", "error", "ItemError"),
        ("MissingScore", "error", "ItemError"),
        ("SourceReport", "state", "SourceState"),
    ] {
        let reference = format!("#/components/schemas/{typed}");
        assert_eq!(schemas[schema]["properties"][member]["$ref"], json!(reference), "{schema}.{member}");
        assert!(schemas[typed]["enum"].is_array(), "{typed}");
    }
}

#[test]
fn an_event_is_one_kind_by_its_op() {
    let schema = json!({ "$ref": "#/components/schemas/EventDocument" });
    let kinds = DOCUMENT["components"]["schemas"]["EventDocument"]["oneOf"].as_array().unwrap();
    assert_eq!(kinds.len(), 4);
    for good in [
        json!({ "src": "a", "dst": 7, "ts": 1 }),
        json!({ "op": "upsert", "src": "a", "dst": 7, "ts": 1, "type": null, "features": [0.5], "label": 1 }),
        json!({ "op": "node", "node": "a", "ts": 1, "features": [0.5] }),
        json!({ "op": "delete", "src": "a", "dst": 7 }),
        json!({ "op": "delete", "src": "a", "dst": 7, "ts": 5 }),
        json!({ "op": "delete", "node": "a" }),
    ] {
        contract::fits(&schema, &good).unwrap_or_else(|why| panic!("{good}: {why}"));
    }
    for bad in [
        json!({ "src": "a", "dst": 7 }),
        json!({ "op": "node", "src": "a", "dst": 7, "ts": 1 }),
        json!({ "op": "delete", "src": "a" }),
        json!({ "op": "remove", "node": "a" }),
        json!({ "src": "a", "dst": 1.5, "ts": 1 }),
        json!({ "src": "a", "dst": 7, "ts": 4_611_686_018_427_387_905_i64 }),
    ] {
        assert!(contract::fits(&schema, &bad).is_err(), "{bad}");
    }
}

#[test]
fn the_document_states_the_limits_of_its_daemon() {
    let live = Live::with(|state| {
        state.limits.batch_items = 3;
        state.limits.wait = std::time::Duration::from_millis(77);
    });
    let document = live.get("/openapi.json").json();
    let schemas = &document["components"]["schemas"];
    for (schema, list) in [("EmbeddingsRequest", "nodes"), ("ScoresRequest", "pairs")] {
        assert_eq!(schemas[schema]["properties"][list]["maxItems"], 3, "{schema}");
        assert_eq!(schemas[schema]["properties"]["wait_ms"]["maximum"], 77, "{schema}");
    }
    assert_eq!(schemas["EventsDocument"]["oneOf"][1]["maxItems"], 3);
    let parameters = document["paths"]["/v1/nodes/{key}"]["get"]["parameters"].as_array().unwrap();
    let maximum = |name: &str| {
        let parameter = parameters.iter().find(|parameter| parameter["name"] == name).unwrap();
        parameter["schema"]["maximum"].clone()
    };
    assert_eq!((maximum("neighbors"), maximum("wait_ms")), (json!(3), json!(77)));

    let info = live.get("/v1/info").json();
    assert_eq!(info["limits"]["batch_items_max"], 3);
    assert_eq!(info["limits"]["wait_ms_max"], 77);
    assert_eq!(info["limits"]["body_bytes_max"], live.state.limits.body_bytes);
    assert_eq!(info["edge_feature_dimension"], 2);
    assert_eq!(info["time_unit"], "milliseconds");
    assert_eq!(live.get("/info").status, 404);
}

/// A daemon of its own whose responses depend on nothing but the requests.
fn daemon(folder: &std::path::Path) -> Process {
    let small = ["memory", "time", "embedding"].map(|row| format!("model.{row}_dimension=4"));
    let start = Start::in_dir(folder).set("learner.train=false").set("stream.time_unit=seconds");
    let start = start.set("index.bytes_max=16777216");
    let start = small.iter().fold(start, |start, setting| start.set(setting));
    start.set("device.use=cpu").ready()
}

/// Operations on what only a daemon that learns and has snapshots has; of their responses only kinds are compared.
const OPERATED: [&str; 5] =
    ["promote_model", "roll_back_model", "update_training", "create_snapshot", "cut_log"];

/// Operations on what only a daemon beside a broker has; their examples are written by hand.
const BY_HAND: [&str; 1] = ["seek_source"];

/// A daemon that has published a version, trained on, and written a snapshot.
fn operated_daemon(folder: &std::path::Path) -> Process {
    let process = Start::in_dir(folder).ready();
    let mut end = 0;
    for route in ["/v1/admin/model/promote", "/v1/admin/snapshots"] {
        let events: Vec<String> =
            (end..end + 200).map(|i| format!(r#"{{"src":"u{}","dst":{},"ts":{i}}}"#, i % 7, i % 5)).collect();
        let (status, _) = process.post("/v1/events", "application/x-ndjson", &events.join("\n")).unwrap();
        assert_eq!(status, 200);
        end += 200;
        process.wait_until("learned", |status| status["learner"]["applied_position"] == end);
        let (status, response) = process.post(route, "application/json", "{}").unwrap();
        assert_eq!(status, 200, "{response}");
    }
    let (status, _) =
        process.post("/v1/events", "application/json", r#"{"src":"u1","dst":1,"ts":400}"#).unwrap();
    assert_eq!(status, 200);
    process
}

/// The requests in an order in which each finds what it is about: events first, then reads, then the rest.
fn in_order(document: &Value) -> Vec<Operation> {
    let mut all = operations(document);
    let rank = |operation: &Operation| match operation.name() {
        "push_events" => 0,
        "compute_embeddings" => 1,
        "create_checkpoint" | "update_source" => 3,
        "set_log_level" => 4,
        name => OPERATED.iter().position(|operated| *operated == name).map_or(2, |at| 5 + at),
    };
    all.sort_by_key(rank);
    all
}

/// Sends the example of an operation.
fn ask(process: &Process, method: &str, path: &str, body: Option<&Value>, accept: &str) -> (u16, Value) {
    let agent = crate::process::agent();
    let request =
        ureq::http::Request::builder().method(method).uri(process.url(path)).header("accept", accept);
    let request = request.header("x-request-id", "b0c3e1d2-6f0a-4a59-9c1e-2f6a4f0f7d11");
    let response = match body {
        Some(body) => {
            agent.run(request.header("content-type", "application/json").body(body.to_string()).unwrap())
        }
        None if method == "POST" => agent.run(request.body("").unwrap()),
        None => agent.run(request.body(()).unwrap()),
    };
    let mut response = response.unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Whether a response is like the documented one: the same members and kinds, the same words, numbers close by. In
/// figures of the machine and the moment only kinds are compared.
fn alike(documented: &Value, found: &Value, place: &str) -> Result<(), String> {
    let of_the_moment =
        ["status", "info", "metrics", "check", "since", "detail", "oldest_row", "push_events.freshness"]
            .iter()
            .chain(&OPERATED)
            .any(|word| place.contains(word));
    match (documented, found) {
        (Value::Object(documented), Value::Object(found)) => {
            let names = |object: &Map<String, Value>| object.keys().cloned().collect::<Vec<_>>();
            if names(documented) != names(found) {
                return Err(format!(
                    "{place} has {:?}, documented are {:?}",
                    names(found),
                    names(documented)
                ));
            }
            documented
                .iter()
                .try_for_each(|(name, member)| alike(member, &found[name], &format!("{place}.{name}")))
        }
        (Value::Array(documented), Value::Array(found)) if documented.len() == found.len() => {
            let pairs = documented.iter().zip(found).enumerate();
            pairs.into_iter().try_for_each(|(i, (one, other))| alike(one, other, &format!("{place}[{i}]")))
        }
        (Value::Number(documented), Value::Number(found)) => {
            let (documented, found) = (documented.as_f64().unwrap(), found.as_f64().unwrap());
            if of_the_moment || (documented - found).abs() <= 1e-3 * documented.abs().max(1.0) {
                return Ok(());
            }
            Err(format!("{place} is {found}, documented is {documented}"))
        }
        (Value::String(_), Value::String(_)) | (Value::Null, _) | (_, Value::Null) if of_the_moment => Ok(()),
        (documented, found) if documented == found => Ok(()),
        _ => Err(format!("{place} is {found}, documented is {documented}")),
    }
}

/// With `UPDATE=1` it writes the examples; the document has them after `UPDATE=1 cargo test --test it openapi`.
#[test]
fn examples_are_what_a_daemon_answers() {
    let update = std::env::var_os("UPDATE").is_some();
    let write = |name: &str, request: Option<&Value>, response: &Value| {
        let mut example = json!({ "response": response });
        if let Some(request) = request {
            example["request"] = request.clone();
        }
        let path = format!("{}/src/api/docs/examples/{name}.json", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, format!("{example:#}\n")).unwrap();
    };
    let folder = tempfile::tempdir().unwrap();
    let operated_folder = tempfile::tempdir().unwrap();
    let (process, operated) = (daemon(folder.path()), operated_daemon(operated_folder.path()));
    let (_, document) = process.get("/openapi.json").unwrap();
    for operation in in_order(&document) {
        let name = operation.name();
        if BY_HAND.contains(&name) {
            for (media, content) in operation.response() {
                contract::fits(&content["schema"], &content["example"])
                    .unwrap_or_else(|why| panic!("{name} {media}: {why}"));
            }
            continue;
        }
        if operation.response().next().is_none() {
            assert!(name.starts_with("export_"), "{name} is a stream without an example");
            continue;
        }
        let process = if OPERATED.contains(&name) { &operated } else { &process };
        let request = operation.request().map(|content| &content["example"]);
        let (status, mut found) =
            ask(process, &operation.method, &operation.example_path(), request, "application/json");
        assert_eq!(status, 200, "{name}: {found}");
        if let (Some(request), Some(content)) = (request, operation.request()) {
            contract::fits(&content["schema"], request).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        if name == "get_metrics" {
            // One of many.
            let metric = "evergraph_build_info";
            let lines = found.as_str().unwrap().lines().filter(|line| line.contains(metric));
            found = lines.map(|line| format!("{line}\n")).collect::<String>().into();
        }
        if update {
            write(name, request, &found);
            continue;
        }
        for (media, content) in operation.response() {
            contract::fits(&content["schema"], &content["example"])
                .unwrap_or_else(|why| panic!("{name} {media}: {why}"));
            alike(&content["example"], &found, name).unwrap();
        }
    }
    for (name, media) in [("error", "application/json"), ("problem", "application/problem+json")] {
        let (status, found) = ask(&process, "GET", "/v1/nodes/nobody", None, media);
        assert_eq!(status, 404, "{found}");
        if update {
            write(name, None, &found);
            continue;
        }
        for operation in operations(&document) {
            let content = &operation.document["responses"]["default"]["content"][media];
            contract::fits(&content["schema"], &content["example"]).unwrap();
            alike(&content["example"], &found, name).unwrap();
        }
    }
}

/// Where `scripts/setup.sh test` puts the generator of clients and what its clients need.
fn generator() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/tools/openapi-client"));
    if folder.join("installed").exists() {
        return Some(folder);
    }
    let required = std::env::var_os("EVERGRAPH_OPENAPI_CLIENT").is_some();
    assert!(!required, "EVERGRAPH_OPENAPI_CLIENT requires openapi-python-client in {}", folder.display());
    crate::skip::skipped(
        "no client is generated: scripts/setup.sh test could not install openapi-python-client",
    );
    None
}

#[test]
fn a_generated_python_client_compiles_and_runs() {
    let Some(packages) = generator() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let process = daemon(&path("data"));
    let (_, document) = process.get("/openapi.json").unwrap();
    std::fs::write(path("openapi.json"), document.to_string()).unwrap();
    std::fs::write(path("settings.yaml"), "post_hooks: []\n").unwrap();
    let python = |args: &[&str], search: &[&std::path::Path]| {
        let search = std::env::join_paths(search).unwrap();
        let mut command = Command::new("python3");
        command.args(["-B"]).args(args).env("PYTHONPATH", search).current_dir(folder.path());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "python3 {args:?}: {said}");
        said
    };
    let generate = [
        "-m",
        "openapi_python_client",
        "generate",
        "--path",
        "openapi.json",
        "--config",
        "settings.yaml",
        "--meta",
        "none",
        "--output-path",
        "clients/evergraph_client",
    ];
    let said = python(&generate, &[&packages]);
    // The generator leaves out bodies of lines, as it says, and pushes arrays.
    let known = said.contains("Unsupported content type application/x-ndjson");
    // And streams of Arrow.
    let streams =
        said.lines().filter(|line| line.contains("WARNING") && line.contains("/v1/export/")).count();
    assert_eq!(said.matches("WARNING").count(), usize::from(known) + streams, "{said}");
    python(&["-m", "compileall", "-q", "clients"], &[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/python_client.py");
    let said = python(&[script, &process.url("")], &[&path("clients"), &packages]);
    assert!(said.contains("every call did what it should"), "{said}");
}
