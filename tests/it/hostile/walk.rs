//! A walk over the OpenAPI document against the real daemon: for each operation requests that its schemas allow,
//! requests that they forbid, and damaged ones. No answer is a 500, each is a documented one, what is allowed is
//! answered, and what is forbidden is refused.

use serde_json::{Map, Value, json};
use ureq::http;

use super::{Corpus, Dice};
use crate::contract::{self, DOCUMENT};
use crate::process::{PATIENCE, Process, Start};

/// Rounds over the document.
const ROUNDS: usize = 12;

/// A daemon with some nodes.
struct Walked {
    process: Process,
    agent: ureq::Agent,
    _folder: tempfile::TempDir,
}

impl Walked {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let start = Start::in_dir(folder.path()).set("api.wait_ms_max=20").set("learner.train=false");
        let start = start.set("index.bytes_max=1073741824");
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .build()
            .into();
        let walked = Self { process: start.ready(), agent, _folder: folder };
        let events: Vec<Value> =
            (0..50).map(|i| json!({"src": "alice", "dst": i % 9, "ts": i, "type": "alice"})).collect();
        let events = json!(events).to_string();
        let (status, said) = walked.send("POST", "/v1/events", "application/json", events.as_bytes());
        assert_eq!(status, 200, "{said}");
        walked.process.wait_until("learned", |status| status["learner"]["applied_position"] == 50);
        let has_rows =
            || walked.send("POST", "/v1/links/top", "application/json", br#"{"src": [1]}"#).0 == 200;
        walked.process.wait_until("rows in the index", |_| has_rows());
        walked
    }

    /// Sends a request; the answer is a documented one and no defect.
    fn send(&self, method: &str, path: &str, media: &str, body: &[u8]) -> (u16, String) {
        let request = http::Request::builder().method(method).uri(self.process.url(path));
        let request = request.header("content-type", media);
        let answer = match method {
            "GET" => self.agent.run(request.body(()).unwrap()),
            _ => self.agent.run(request.body(body).unwrap()),
        };
        let sent = || String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        let mut answer = answer.unwrap_or_else(|error| panic!("{method} {path} {}: {error}", sent()));
        let (status, bytes) = (answer.status().as_u16(), answer.body_mut().read_to_vec().unwrap());
        // An export is no text.
        let said = String::from_utf8_lossy(&bytes).into_owned();
        assert_ne!(status, 500, "{method} {path} {}: {said}", sent());
        contract::check(method, path, answer.headers(), status, &bytes)
            .unwrap_or_else(|why| panic!("{why}; sent {}", sent()));
        if status >= 400 {
            let body: Value = serde_json::from_str(&said).unwrap();
            let words = body["error"].as_str().unwrap();
            assert!(words.chars().count() < 1_000, "what was sent comes back: {} bytes", words.len());
        }
        (status, said)
    }
}

/// A schema with its references followed.
fn resolved(schema: &Value) -> &Value {
    match schema["$ref"].as_str() {
        Some(reference) => resolved(DOCUMENT.pointer(reference.trim_start_matches('#')).unwrap()),
        None => schema,
    }
}

fn kinds(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    }
}

/// One of the values that the schema allows.
fn fitting(schema: &Value, values: Vec<Value>, dice: &mut Dice) -> Value {
    let fitting: Vec<Value> =
        values.into_iter().filter(|value| contract::fits(schema, value).is_ok()).collect();
    fitting[dice.below(fitting.len())].clone()
}

fn text(schema: &Value, dice: &mut Dice) -> Value {
    let (long, longer) = ("x".repeat(1024), "x".repeat(1025));
    let texts =
        ["alice", "7", "3", "nobody", "käse", "a b", "", "\u{0}", "../..", "🦀", "\"", &long, &longer];
    fitting(schema, texts.map(Value::from).to_vec(), dice)
}

fn integer(schema: &Value, dice: &mut Dice) -> Value {
    let bounds = ["minimum", "maximum"].map(|bound| schema[bound].as_i64());
    let numbers = [0, 1, 7, 40, 1_700_000_000, i64::MAX, -1, i64::MIN];
    let numbers = numbers.into_iter().chain(bounds.into_iter().flatten()).map(Value::from);
    fitting(schema, numbers.collect(), dice)
}

/// A value that the schema allows.
fn allowed(schema: &Value, dice: &mut Dice) -> Value {
    let schema = resolved(schema);
    if let Some(values) = schema["enum"].as_array() {
        return values[dice.below(values.len())].clone();
    }
    if let Some(forms) = schema["oneOf"].as_array() {
        return allowed(&forms[dice.below(forms.len())], dice);
    }
    let kinds = kinds(schema);
    match kinds.get(dice.below(kinds.len())).copied() {
        Some("null") => Value::Null,
        Some("boolean") => json!(dice.below(2) == 0),
        Some("integer") => integer(schema, dice),
        Some("number") => json!([0.0, -1.5, 1e30, 1e300][dice.below(4)]),
        Some("string") => text(schema, dice),
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(0) as usize;
            (0..least + dice.below(4)).map(|_| allowed(&schema["items"], dice)).collect()
        }
        Some("object") | None => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let members = schema["properties"].as_object().cloned().unwrap_or_default();
            let chosen =
                members.iter().filter(|(name, _)| required.contains(&json!(name)) || dice.below(2) == 0);
            let chosen: Vec<_> = chosen.collect();
            Value::Object(
                chosen.into_iter().map(|(name, member)| (name.clone(), allowed(member, dice))).collect(),
            )
        }
        Some(other) => panic!("the document uses the type {other}, which this walk does not know"),
    }
}

/// A value that the schema does not allow; `None` where it allows everything that is tried.
fn forbidden(schema: &Value, dice: &mut Dice) -> Option<Value> {
    let schema = resolved(schema);
    let of_another_type = || {
        let values = [json!(null), json!(true), json!(1.5), json!("text"), json!([[]]), json!({"odd": 1})];
        values.into_iter().filter(|value| contract::fits(schema, value).is_err()).collect::<Vec<_>>()
    };
    let spoiled = |dice: &mut Dice| -> Option<Value> {
        let mut value = allowed(schema, dice);
        let object = value.as_object_mut()?;
        let members = schema["properties"].as_object()?;
        match dice.below(3) {
            0 => {
                let required = schema["required"].as_array()?;
                object.remove(required[dice.below(required.len())].as_str()?);
            }
            1 => drop(object.insert("odd".to_owned(), json!(1))),
            _ => {
                let (name, member) = members.iter().nth(dice.below(members.len()))?;
                object.insert(name.clone(), forbidden(member, dice)?);
            }
        }
        Some(value)
    };
    let shorter = || (schema["minItems"].as_u64()? > 0).then(|| json!([]));
    let smaller = || schema["minimum"].as_i64().map(|least| json!(least - 1));
    let larger = || schema["maximum"].as_i64().map(|most| json!(most + 1));
    let longer = || schema["maxLength"].as_u64().map(|most| json!("x".repeat(most as usize + 1)));
    let mut tried = of_another_type();
    tried.extend(spoiled(dice));
    tried.extend(spoiled(dice));
    tried.extend(shorter());
    tried.extend(smaller());
    tried.extend(larger());
    tried.extend(longer());
    tried.retain(|value| contract::fits(schema, value).is_err());
    (!tried.is_empty()).then(|| tried[dice.below(tried.len())].clone())
}

/// Percent-encodes everything that is not a letter or a digit.
fn coded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// The path of an operation with parameters that its schemas allow; or, if `spoil`, one that they do not allow.
fn path(template: &str, operation: &Value, spoil: bool, dice: &mut Dice) -> Option<String> {
    let (mut path, mut query, mut spoiled) = (template.to_owned(), Vec::new(), !spoil);
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    // A header has only text, and all that is tried here are types.
    for parameter in parameters.filter(|parameter| parameter["in"] != "header") {
        let name = parameter["name"].as_str().unwrap();
        let in_path = parameter["in"] == "path";
        let mut value = match &parameter["example"] {
            Value::String(example) if dice.below(2) == 0 => json!(example),
            _ => allowed(&parameter["schema"], dice),
        };
        if !in_path && !spoiled {
            value = forbidden(&parameter["schema"], dice)?;
            spoiled = true;
        } else if !in_path && dice.below(2) == 0 {
            continue;
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if in_path {
            path = path.replace(&format!("{{{name}}}"), &coded(if text.is_empty() { "7" } else { &text }));
        } else {
            query.push(format!("{name}={}", coded(&text)));
        }
    }
    spoiled.then(|| format!("{path}?{}", query.join("&")))
}

/// How often an operation answered what.
#[derive(Default)]
struct Seen(Map<String, Value>);

impl Seen {
    fn count(&mut self, operation: &str, status: u16) {
        let statuses = self.0.entry(operation).or_insert_with(|| json!({}));
        let count = statuses[status.to_string()].as_u64().unwrap_or(0);
        statuses[status.to_string()] = json!(count + 1);
    }
}

#[test]
fn every_operation_answers_what_its_schemas_allow_and_refuses_what_they_forbid() {
    let (walked, mut allows, mut forbids) = (Walked::start(), Seen::default(), Seen::default());
    let rounds = ROUNDS * super::setting("EVERGRAPH_FUZZ_CASES", super::CASES) / super::CASES;
    for round in 0..rounds.max(2) {
        for (template, methods) in DOCUMENT["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                if template == "/v1/events" {
                    let go_on = br#"{"paused": false}"#;
                    walked.send("PUT", "/v1/admin/sources/http", "application/json", go_on);
                }
                let (name, method) = (format!("{method} {template}"), method.to_uppercase());
                let mut dice = Dice::of(&name, round);
                let body = &operation["requestBody"]["content"]["application/json"]["schema"];
                let json = "application/json";
                let good = path(template, operation, false, &mut dice).unwrap();
                let content =
                    if body.is_null() { String::new() } else { allowed(body, &mut dice).to_string() };
                allows.count(&name, walked.send(&method, &good, json, content.as_bytes()).0);
                if let Some(bad) = path(template, operation, true, &mut dice) {
                    let (status, said) = walked.send(&method, &bad, json, content.as_bytes());
                    assert!((400..500).contains(&status), "{bad}: {status} {said}");
                    forbids.count(&name, status);
                }
                if let Some(content) = (!body.is_null()).then(|| forbidden(body, &mut dice)).flatten() {
                    let (status, said) = walked.send(&method, &good, json, content.to_string().as_bytes());
                    assert!((400..500).contains(&status), "{good} {content}: {status} {said}");
                    forbids.count(&name, status);
                }
            }
        }
    }
    eprintln!("allowed: {}\nforbidden: {}", Value::Object(allows.0.clone()), Value::Object(forbids.0));
    // They need versions, snapshots, training or a broker that this daemon does not have, or one of two members; other
    // tests have them succeed.
    let refused = [
        "/v1/nodes/similar",
        "/v1/admin/model/promote",
        "/v1/admin/model/rollback",
        "/v1/admin/training",
        "/v1/admin/log/cut",
        "/v1/admin/sources/{source}/seek",
    ];
    for (operation, statuses) in allows.0 {
        let may_refuse = refused.iter().any(|path| operation.ends_with(path)) && statuses["422"].is_u64();
        assert!(may_refuse || !statuses["200"].is_null(), "{operation} never answered: {statuses}");
    }
}

#[test]
fn a_damaged_body_is_a_documented_answer_of_each_route() {
    let words = &[
        "\"nodes\":",
        "\"pairs\":",
        "\"candidates\":",
        "\"limit\":",
        "\"at\":",
        "\"min_position\":",
        "\"wait_ms\":",
        "null",
        "[]",
        "{}",
        "prior",
        "\\ud800",
    ];
    let walked = Walked::start();
    for (corpus, path, media) in [
        ("embeddings", "/v1/embeddings", "application/json"),
        ("scores", "/v1/links/score", "application/json"),
        ("top", "/v1/links/top", "application/json"),
        ("similar", "/v1/nodes/similar", "application/json"),
        ("body-json", "/v1/events", "application/json"),
        ("body-lines", "/v1/events", "application/x-ndjson"),
    ] {
        Corpus::read(corpus, words).check(4, |bytes| {
            let status = walked.send("POST", path, media, bytes).0;
            assert!(status < 500, "{path}: {status}");
            status == 200
        });
    }
}
