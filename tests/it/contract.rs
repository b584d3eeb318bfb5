//! Checks responses against the checked-in OpenAPI document: the status is a documented one, and the body is what
//! the document describes, without further members. Knows the few words of JSON Schema that the document uses and
//! panics at any other, so that none is passed over.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use ureq::http::HeaderMap;

/// The checked-in document.
pub static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("openapi.json")).unwrap());

/// Keywords that do not restrict values, or no more than their types do.
const NOTES: [&str; 8] =
    ["$schema", "contentEncoding", "default", "description", "example", "examples", "format", "title"];

/// What is wrong with a response, if anything. Methods and paths that are not in the document are not judged
/// here; a 500 may come from every route and has the shape of an error.
pub fn check(method: &str, path: &str, headers: &HeaderMap, status: u16, body: &[u8]) -> Result<(), String> {
    let path = path.split('?').next().unwrap_or_default();
    let Some(responses) = responses(method, path) else { return Ok(()) };
    let response = match responses.get(status.to_string()) {
        Some(response) => response,
        None if status == 500 => &responses["default"],
        None => return Err(format!("{method} {path}: status {status} is not documented")),
    };
    check_headers(response, headers).map_err(|why| format!("{method} {path} {status}: {why}"))?;
    let Some(content) = response["content"].as_object() else { return Ok(()) };
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()?.split(';').next());
    let Some(media) = content.get(kind.unwrap_or_default()) else {
        return Err(format!("{method} {path} {status}: the content type {kind:?} is not documented"));
    };
    if !kind.is_some_and(|kind| kind.ends_with("json")) {
        return Ok(());
    }
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("{method} {path}: {error}"))?;
    fits(&media["schema"], &body).map_err(|why| format!("{method} {path} {status}: {why} in {body}"))
}

/// Headers that are always there are there, and all that are have their type.
fn check_headers(response: &Value, headers: &HeaderMap) -> Result<(), String> {
    for (name, reference) in response["headers"].as_object().into_iter().flatten() {
        let documented = named(&reference["$ref"])?;
        let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else {
            if documented["required"] == true {
                return Err(format!("there is no header {name}"));
            }
            continue;
        };
        let value = match documented["schema"]["type"].as_str() {
            Some("integer") => json!(value.parse::<i64>().map_err(|error| format!("{name}: {error}"))?),
            _ => json!(value),
        };
        fits(&documented["schema"], &value).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

fn responses(method: &str, path: &str) -> Option<&'static Value> {
    let paths = DOCUMENT["paths"].as_object()?;
    let is_like = |template: &str| match template.split_once('{') {
        None => template == path,
        Some((start, _)) => path.strip_prefix(start).is_some_and(|key| !key.is_empty() && !key.contains('/')),
    };
    let (_, methods) = paths.iter().find(|(template, _)| is_like(template))?;
    methods.get(method.to_lowercase())?.get("responses")
}

/// Whether a value matches a schema.
pub fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    let schema = schema.as_object().ok_or("a schema that is no object")?;
    for (word, rule) in schema {
        match word.as_str() {
            "$ref" => fits(named(rule)?, value)?,
            "type" => fits_type(rule, value)?,
            "enum" if rule.as_array().is_some_and(|list| list.contains(value)) => {}
            "enum" => return Err(format!("{value} is none of {rule}")),
            "oneOf" => fits_one(rule, value)?,
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| fits(rule, item))?,
            "maxItems" => at_least(&negative(rule), value.as_array().map(|list| -(list.len() as f64)))?,
            "minLength" => at_least(rule, value.as_str().map(|text| text.chars().count() as f64))?,
            "maxLength" => {
                at_least(&negative(rule), value.as_str().map(|text| -(text.chars().count() as f64)))?;
            }
            "minItems" => at_least(rule, value.as_array().map(|list| list.len() as f64))?,
            "minimum" | "maximum" => within(word, rule, value)?,
            "required" => has_all(rule, value)?,
            "properties" | "additionalProperties" | "propertyNames" => {}
            note if NOTES.contains(&note) => {}
            unknown => panic!("the document uses {unknown}, which this checker does not know"),
        }
    }
    value.as_object().map_or(Ok(()), |object| fits_members(schema, object))
}

fn named(reference: &Value) -> Result<&'static Value, String> {
    let pointer = reference.as_str().unwrap_or_default().trim_start_matches('#');
    DOCUMENT.pointer(pointer).ok_or_else(|| format!("{reference} is not in the document"))
}

fn fits_type(rule: &Value, value: &Value) -> Result<(), String> {
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the document uses the type {other}, which this checker does not know"),
    };
    let kinds = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
    if kinds.iter().filter_map(Value::as_str).any(is) { Ok(()) } else { Err(format!("{value} is no {rule}")) }
}

fn fits_one(rule: &Value, value: &Value) -> Result<(), String> {
    let outcomes: Vec<_> = rule.as_array().into_iter().flatten().map(|one| fits(one, value)).collect();
    let fitting = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    if fitting == 1 { Ok(()) } else { Err(format!("{value} fits {fitting} of {outcomes:?}, not one")) }
}

fn at_least(rule: &Value, value: Option<f64>) -> Result<(), String> {
    match (rule.as_f64(), value) {
        (Some(least), Some(value)) if value < least => Err(format!("{value} is outside the bound {least}")),
        _ => Ok(()),
    }
}

fn negative(rule: &Value) -> Value {
    json!(-rule.as_f64().unwrap())
}

/// Integers are compared as integers: a double does not hold them all.
fn within(word: &str, rule: &Value, value: &Value) -> Result<(), String> {
    let outside = match (rule.as_i64(), value.as_i64(), rule.as_f64(), value.as_f64()) {
        (Some(rule), Some(value), ..) if word == "minimum" => value < rule,
        (Some(rule), Some(value), ..) => value > rule,
        (_, _, Some(rule), Some(value)) if word == "minimum" => value < rule,
        (_, _, Some(rule), Some(value)) => value > rule,
        _ => false,
    };
    if outside { Err(format!("{value} is outside the bound {rule}")) } else { Ok(()) }
}

fn has_all(rule: &Value, value: &Value) -> Result<(), String> {
    let missing = |name: &&str| value.is_object() && value.get(name).is_none();
    match rule.as_array().into_iter().flatten().filter_map(Value::as_str).find(missing) {
        Some(name) => Err(format!("{name} is missing")),
        None => Ok(()),
    }
}

/// Members are the documented ones; others only where the schema describes them, or lists no members.
fn fits_members(schema: &Map<String, Value>, object: &Map<String, Value>) -> Result<(), String> {
    let known = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties");
    for (name, member) in object {
        match (known.and_then(|known| known.get(name)), others, known) {
            (Some(documented), ..) => fits(documented, member).map_err(|why| format!("{name}: {why}"))?,
            (None, Some(Value::Object(_)), _) => {
                fits(&schema["additionalProperties"], member).map_err(|why| format!("{name}: {why}"))?;
            }
            (None, None, None) | (None, Some(Value::Bool(true)), _) => {}
            (None, ..) => return Err(format!("{name} is not documented")),
        }
    }
    Ok(())
}

#[test]
fn the_checker_sees_what_is_wrong() {
    let freshness = json!({
        "model_version": 1, "watermark": null, "applied_position": 0, "indexed_position": 0, "durable_position": 0
    });
    let good = json!({ "at": 1, "embeddings": [{ "node": 7, "error": "unknown_node" }], "source": "model", "freshness": freshness });
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("x-request-id", "1".parse().unwrap());
    let judge_with = |headers: &HeaderMap, body: &Value, status| {
        check("POST", "/v1/embeddings", headers, status, body.to_string().as_bytes())
    };
    let judge = |body: &Value, status| judge_with(&headers, body, status);
    judge(&good, 200).unwrap();
    for (pointer, bad, why) in [
        ("/at", json!("1"), "is no"),
        ("/freshness/model_version", json!(-1), "outside the bound"),
        ("/freshness", json!({}), "is missing"),
        ("/embeddings/0/node", json!(1.5), "fits 0"),
        ("/embeddings/0", json!({ "node": 7, "error": "unknown_node", "extra": 1 }), "fits 0"),
    ] {
        let mut body = good.clone();
        *body.pointer_mut(pointer).unwrap() = bad;
        let found = judge(&body, 200).unwrap_err();
        assert!(found.contains(why), "{pointer}: {found}");
    }
    let without_id =
        HeaderMap::from_iter(headers.clone().into_iter().take(1).filter_map(|(n, v)| Some((n?, v))));
    assert!(judge_with(&without_id, &good, 200).unwrap_err().contains("no header x-request-id"));
    let mut text = headers.clone();
    text.insert("content-type", "text/plain".parse().unwrap());
    assert!(judge_with(&text, &good, 200).unwrap_err().contains("text/plain"));
    assert!(judge(&good, 418).unwrap_err().contains("not documented"));
    assert!(judge(&good, 422).unwrap_err().contains("is missing"), "an error has the shape of errors");
}
