//! Node keys in JSON.
//!
//! A key is sent as a string or as an integer and comes back as it was sent, so a client finds its own key again and
//! one that sent a string never has to read a number. Where the daemon itself names a node, an integer is a number only
//! where every client reads it exactly ([`NodeKey::exact_number`]).

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use super::error::ApiError;
use crate::event::NodeKey;

/// Longest key in bytes: events with a longer one are rejected.
pub(super) const KEY_BYTES_MAX: usize = 1024;

/// A node key, with the form in which it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The key.
    pub node: NodeKey,
    /// How it is written.
    pub form: Form,
}

/// How a key is written in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a number.
    Number,
    /// As a string.
    Text,
}

impl Key {
    /// A key that the daemon names: an integer that every client reads exactly is a number, any other key a string.
    #[must_use]
    pub fn named(node: NodeKey) -> Self {
        let form = if node.exact_number().is_some() { Form::Number } else { Form::Text };
        Self { node, form }
    }

    /// Bytes of its text.
    pub(super) fn text_bytes(&self) -> usize {
        match &self.node {
            NodeKey::Int(_) => 20,
            NodeKey::Text(text) => text.len(),
        }
    }

    /// The key in a path, where all is text.
    pub(super) fn of_path(text: &str) -> Result<Self, ApiError> {
        if text.len() > KEY_BYTES_MAX {
            return Err(ApiError::Invalid(too_long(text.len())));
        }
        Ok(Self::named(NodeKey::from_text(text)))
    }
}

fn too_long(bytes: usize) -> String {
    format!("a node key of {bytes} bytes; no node has a key of more than {KEY_BYTES_MAX}")
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.node, self.form) {
            (NodeKey::Int(number), Form::Number) => serializer.serialize_i64(*number),
            (node, _) => serializer.collect_str(node),
        }
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a node key: a string, or an integer of 64 bits with sign")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Key, E> {
        Ok(Key { node: NodeKey::Int(number), form: Form::Number })
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Key, E> {
        match i64::try_from(number) {
            Ok(number) => self.visit_i64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Key, E> {
        if text.len() > KEY_BYTES_MAX {
            return Err(E::custom(too_long(text.len())));
        }
        Ok(Key { node: NodeKey::from_text(text), form: Form::Text })
    }
}

impl PartialSchema for Key {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::Custom("int64".to_owned());
        let number = ObjectBuilder::new().schema_type(Type::Integer).format(Some(format));
        let text = ObjectBuilder::new().schema_type(Type::String).max_length(Some(KEY_BYTES_MAX));
        OneOfBuilder::new()
            .item(number)
            .item(text)
            .description(Some(
                "A node key: an integer of 64 bits with sign, or a string of at most 1024 bytes. `7` and `\"7\"` are \
                 one node, `\"07\"` is another. Responses write a key as the request wrote it. Keys that only the \
                 daemon names (the node of a path, neighbors) are numbers up to 2^53 - 1 in size and strings beyond, \
                 so that no client changes them.",
            ))
            .into()
    }
}

impl ToSchema for Key {}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(json: &str) -> Result<Key, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_is_written_as_it_was_read() {
        for sent in [
            "7",
            "\"7\"",
            "-7",
            "\"-7\"",
            "\"07\"",
            "\"a b\"",
            "9007199254740993",
            "\"9007199254740993\"",
            "-9223372036854775808",
            "\"9223372036854775808\"",
        ] {
            assert_eq!(serde_json::to_string(&key(sent).unwrap()).unwrap(), sent);
        }
        assert_eq!(key("7").unwrap().node, key("\"7\"").unwrap().node);
        assert_ne!(key("7").unwrap().node, key("\"07\"").unwrap().node);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for sent in ["1.5", "1e3", "true", "null", "[7]", "{}", "9223372036854775808", "-9223372036854775809"]
        {
            let refused = key(sent).unwrap_err();
            assert!(refused.contains("a node key"), "{sent}: {refused}");
        }
        assert!(key(&format!("\"{}\"", "x".repeat(KEY_BYTES_MAX))).is_ok());
        let long = format!("\"{}\"", "x".repeat(KEY_BYTES_MAX + 1));
        assert!(key(&long).unwrap_err().contains("1025 bytes"));
    }
}
