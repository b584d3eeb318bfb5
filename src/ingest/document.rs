//! What a value or a key is read from: JSON text, a value in memory, or bytes of Avro with the schema that they were
//! written by, which need no detour through text. Whoever reads one gives a seed of serde and does not care which it
//! is.

use std::borrow::Cow;

use serde::de::DeserializeSeed;
use serde_json::Value;

use super::registry::{AvroError, AvroSchema};
use super::rejection::{Reason, Rejection};

/// A value or a key.
#[derive(Debug)]
pub enum Document<'m> {
    /// JSON text.
    Json(Cow<'m, [u8]>),
    /// A value, as of a row of a file.
    Value(Value),
    /// What was written by a schema of Avro.
    Avro(Written<'m>),
}

/// Bytes, and the schema that they were written by.
#[derive(Debug)]
pub struct Written<'m> {
    /// Whose bytes they are, for errors.
    pub what: &'static str,
    /// The id of the schema.
    pub id: u32,
    /// The schema.
    pub schema: &'m AvroSchema,
    /// What was written.
    pub bytes: &'m [u8],
    /// The limit of an event: of the bytes of its text, or of its values.
    pub size_max: usize,
}

impl<'m> Document<'m> {
    /// JSON text.
    #[must_use]
    pub fn of_text(text: &'m [u8]) -> Self {
        Self::Json(Cow::Borrowed(text))
    }

    /// Reads it as what `seed` makes of it.
    ///
    /// # Errors
    /// When it is not what it should be, or the seed takes no such value.
    pub fn read<'a, S: DeserializeSeed<'a>>(&'a self, seed: S) -> Result<S::Value, Rejection> {
        match self {
            Self::Json(text) => {
                let mut json = serde_json::Deserializer::from_slice(text);
                let read = seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
                read.map_err(|error| Rejection::new(Reason::MalformedJson, error.to_string()))
            }
            Self::Value(value) => seed
                .deserialize(value)
                .map_err(|error| Rejection::new(Reason::MalformedRow, error.to_string())),
            Self::Avro(written) => {
                let read = written.schema.read(written.bytes, written.size_max, seed);
                read.map_err(|error| written.rejection(&error))
            }
        }
    }

    /// It as JSON text.
    ///
    /// # Errors
    /// When it cannot be, or the text would be longer than an event may be.
    pub fn into_text(self) -> Result<Cow<'m, [u8]>, Rejection> {
        match self {
            Self::Json(text) => Ok(text),
            Self::Value(value) => Ok(Cow::Owned(value.to_string().into())),
            Self::Avro(written) => {
                let text = written.schema.to_json(written.bytes, written.size_max);
                text.map(Cow::Owned).map_err(|error| written.rejection(&error))
            }
        }
    }
}

impl Written<'_> {
    fn rejection(&self, error: &AvroError) -> Rejection {
        match error {
            AvroError::TooLarge => too_large(self.what, self.size_max),
            AvroError::Undecodable { .. } => unreadable(self.what, self.id, error),
            AvroError::Unexpected { .. } => {
                let detail = format!("{}, written by schema {}: {error}", self.what, self.id);
                Rejection::new(Reason::WrongType, detail)
            }
        }
    }
}

/// That a value or a key is larger than an event may be.
pub(super) fn too_large(what: &str, size_max: usize) -> Rejection {
    let detail = format!("{what} has more than {size_max} values, or bytes as JSON, the limit of an event");
    Rejection::new(Reason::TooLarge, detail)
}

/// That a value or a key is not what its schema says.
pub(super) fn unreadable(what: &str, id: u32, why: &dyn std::fmt::Display) -> Rejection {
    Rejection::new(Reason::Undecodable, format!("{what} is not what schema {id} describes: {why}"))
}

/// Bytes as a text, a character each.
pub(super) fn characters(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => Cow::Borrowed(text),
        _ => bytes.iter().copied().map(char::from).collect(),
    }
}

/// The text of a float that is not finite, which JSON has no number for.
pub(super) fn no_number(real: f64) -> &'static str {
    if real.is_nan() {
        "NaN"
    } else if real > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}

/// A float as a number, or as a text.
pub(super) fn number(real: f64) -> Value {
    serde_json::Number::from_f64(real).map_or_else(|| no_number(real).into(), Value::Number)
}
