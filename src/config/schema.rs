//! The settings file as a JSON Schema. It cannot differ from the code: the types are recorded while they
//! deserialize the default file, descriptions are its comments, and defaults its values.

use std::collections::BTreeMap;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Error, Map, Value, json};

use super::layers::{Layer, merged};
use super::mapping::{EXAMPLE, MAPPINGS};
use super::topics::TOPICS;
use super::{Config, Mapping, Topic, bounds, document};

/// The schema of a settings file.
///
/// # Errors
/// Never for the default file that is compiled in; a test holds it.
pub fn json_schema() -> anyhow::Result<Value> {
    let layer = Layer::default_file()?;
    let defaults: Value = layer.settings.clone().try_deserialize()?;
    // Errors in the default file are returned unchanged.
    merged(&[layer])?;
    let mut shape = Shape::Any;
    Config::deserialize(Recorder { value: defaults.clone(), shape: &mut shape })?;
    let words = document::entries().into_iter().map(|entry| (entry.path, entry.words)).collect();
    let mut schema = describe(&shape, &defaults, "", &words);
    let ingest = &mut schema["properties"]["ingest"]["properties"];
    ingest["mappings"] = named::<Mapping>(MAPPINGS, &defaults["ingest"]["mappings"], &words)?;
    let topics = &defaults["ingest"]["kafka"]["topics"];
    ingest["kafka"]["properties"]["topics"] = named::<Topic>(TOPICS, topics, &words)?;
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Settings of Evergraph".into();
    Ok(schema)
}

/// The words of which a setting is one, if it is one of some.
pub(super) fn words_of(key: &str) -> Option<Vec<String>> {
    let mut found = &json_schema().ok()?;
    for name in key.split('.') {
        found = found["properties"].get(name)?;
    }
    serde_json::from_value(found.get("enum")?.clone()).ok()
}

/// The schema of sections under any names, from the one of the default file.
fn named<T: for<'de> Deserialize<'de>>(
    table: &str,
    defaults: &Value,
    words: &BTreeMap<String, String>,
) -> anyhow::Result<Value> {
    let (example, path) = (&defaults[EXAMPLE], format!("{table}.{EXAMPLE}"));
    let mut shape = Shape::Any;
    T::deserialize(Recorder { value: example.clone(), shape: &mut shape })?;
    let section = describe(&shape, example, &path, words);
    Ok(json!({
        "type": "object",
        "description": words.get(table),
        "properties": { EXAMPLE: section.clone() },
        "additionalProperties": section,
    }))
}

/// What a place of the settings takes.
enum Shape {
    Truth,
    /// The least, if the type has one that is not its own limit.
    Integer(Option<i64>),
    Number,
    Text,
    Texts,
    Word(&'static [&'static str]),
    Section(Vec<(&'static str, Self)>),
    Any,
}

fn describe(shape: &Shape, default: &Value, path: &str, words: &BTreeMap<String, String>) -> Value {
    let mut out = match shape {
        Shape::Truth => json!({ "type": "boolean" }),
        Shape::Integer(least) => {
            let positive = bounds::AT_LEAST_ONE.iter().any(|(key, _)| *key == path);
            let most = bounds::AT_MOST.iter().find(|bound| bound.0 == path).map(|bound| bound.2);
            let mut out = json!({ "type": "integer" });
            let bounds = [
                ("minimum", if positive { Some(1) } else { *least }.map(Value::from)),
                ("maximum", most.map(Value::from)),
            ];
            for (name, bound) in bounds {
                bound.into_iter().for_each(|bound| out[name] = bound);
            }
            out
        }
        Shape::Number => json!({ "type": "number" }),
        Shape::Text => json!({ "type": "string" }),
        Shape::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Shape::Word(words) => json!({ "type": "string", "enum": words }),
        Shape::Any => json!({ "type": "object", "additionalProperties": true }),
        Shape::Section(fields) => {
            let field = |(name, shape): &(&'static str, Shape)| {
                let inner = if path.is_empty() { (*name).to_owned() } else { format!("{path}.{name}") };
                ((*name).to_owned(), describe(shape, &default[*name], &inner, words))
            };
            let properties: Map<String, Value> = fields.iter().map(field).collect();
            json!({ "type": "object", "properties": properties, "additionalProperties": false })
        }
    };
    if !matches!(shape, Shape::Section(_) | Shape::Any) {
        out["default"] = default.clone();
    }
    if let Some(words) = words.get(path).filter(|words| !words.is_empty()) {
        out["description"] = words.as_str().into();
    }
    out
}

/// Deserializes a value and records the requested type.
struct Recorder<'a> {
    value: Value,
    shape: &'a mut Shape,
}

macro_rules! record {
    ($($method:ident: $shape:expr;)+) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            *self.shape = $shape;
            self.value.$method(visitor)
        }
    )+ };
}

impl<'de> Deserializer<'de> for Recorder<'_> {
    type Error = Error;

    record! {
        deserialize_any: Shape::Any;
        deserialize_bool: Shape::Truth;
        deserialize_u16: Shape::Integer(Some(0));
        deserialize_u32: Shape::Integer(Some(0));
        deserialize_u64: Shape::Integer(Some(0));
        deserialize_i32: Shape::Integer(None);
        deserialize_i64: Shape::Integer(None);
        deserialize_f32: Shape::Number;
        deserialize_f64: Shape::Number;
        deserialize_str: Shape::Text;
        deserialize_string: Shape::Text;
        deserialize_seq: Shape::Texts;
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.shape = Shape::Word(variants);
        self.value.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let Value::Object(values) = self.value else {
            return Err(Error::custom(format!("{name} is no section")));
        };
        *self.shape = Shape::Section(Vec::with_capacity(fields.len()));
        visitor.visit_map(Fields { rest: fields, values, shape: self.shape })
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u128 char bytes byte_buf option unit unit_struct newtype_struct tuple tuple_struct map
        identifier ignored_any
    }
}

/// The fields of a section, one after another.
struct Fields<'a> {
    rest: &'static [&'static str],
    values: Map<String, Value>,
    shape: &'a mut Shape,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(name) = self.rest.first() else { return Ok(None) };
        seed.deserialize(StrDeserializer::<Error>::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((name, rest)) = self.rest.split_first() else {
            return Err(Error::custom("no field is left"));
        };
        self.rest = rest;
        let value = self.values.remove(*name).ok_or_else(|| Error::custom(format!("no {name}")))?;
        let mut shape = Shape::Any;
        let read = seed.deserialize(Recorder { value, shape: &mut shape });
        if let Shape::Section(fields) = self.shape {
            fields.push((*name, shape));
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(schema: &Value, path: &str, found: &mut Vec<String>) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            let inner_path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            keys(inner, &inner_path, found);
            found.push(inner_path);
        }
    }

    #[test]
    fn the_schema_has_every_key_of_the_default_file_and_no_other_and_says_what_it_means() {
        let schema = json_schema().unwrap();
        let mut found = Vec::new();
        keys(&schema, "", &mut found);
        let mut known: Vec<_> = document::entries().into_iter().map(|entry| entry.path).collect();
        found.sort();
        known.sort();
        assert_eq!(found, known);
        let of = |path: &str| {
            path.split('.').fold(schema.clone(), |schema, name| schema["properties"][name].clone())
        };
        let seed = json!({ "type": "integer", "minimum": 0, "default": 0 });
        let message = of("learner.seed");
        assert!(seed.as_object().unwrap().iter().all(|(word, rule)| message[word] == *rule), "{message}");
        assert_eq!(of("model.heads")["minimum"], 1);
        assert_eq!(
            (&of("model.fanout")["minimum"], &of("model.fanout")["maximum"]),
            (&json!(1), &json!(10_000))
        );
        assert_eq!(of("graph.retention")["minimum"], Value::Null);
        assert_eq!(
            of("learner.schedule.decay")["enum"],
            json!(["constant", "inverse-square-root", "cosine"])
        );
        assert_eq!(
            (&of("device.use")["type"], &of("device.use")["default"]),
            (&json!("string"), &json!("auto"))
        );
        assert_eq!(of("learner.gate.edgebank_tolerance")["type"], "number");
        assert_eq!(of("ingest.kafka.properties")["additionalProperties"], true);
        let mappings = of("ingest.mappings");
        assert_eq!(mappings["additionalProperties"]["additionalProperties"], false, "{mappings}");
        assert_eq!(mappings["additionalProperties"]["properties"]["features"]["type"], "array");
        let topics = of("ingest.kafka.topics");
        assert_eq!(topics["additionalProperties"]["properties"]["topic"]["type"], "string", "{topics}");
        assert!(of("checkpoint.keep")["description"].as_str().unwrap().contains("removed"));
        let bare = known.iter().filter(|path| path.contains('.') && of(path)["description"].is_null());
        assert!(bare.count() < 20, "most are explained");
    }
}
