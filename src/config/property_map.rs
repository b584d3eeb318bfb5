//! Properties passed through to a library under dotted names.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Dotted property names and their values, as text.
#[derive(Clone, Debug, Default)]
pub struct Properties(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut flat = BTreeMap::new();
        flatten("", serde_json::Value::deserialize(deserializer)?, &mut flat);
        Ok(Self(flat))
    }
}

/// `security.protocol` may be written as a quoted key or as nested tables; both mean the same.
fn flatten(prefix: &str, value: serde_json::Value, flat: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, inner) in map {
                let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&name, inner, flat);
            }
        }
        serde_json::Value::String(text) => drop(flat.insert(prefix.to_owned(), text)),
        other => drop(flat.insert(prefix.to_owned(), other.to_string())),
    }
}
