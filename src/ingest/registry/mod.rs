//! Messages in the wire format of a schema registry: a byte 0, the id of a schema in four bytes, most significant
//! first, and what was written by that schema. They become documents, as plain JSON is one, so mappings and their
//! pointers are the same for all: what Avro wrote is read where it stands, and Protobuf by its own JSON text.
//!
//! A schema is fetched once (`client`) and kept by its id, which never means another one. Each message names the schema
//! that it was written with, so a topic whose schema evolves is read on. A registry that does not respond is no fault
//! of a message: whoever reads waits and asks again. An id that the registry does not know, and bytes that do not fit
//! (`avro`, `protobuf`), are rejections.

mod avro;
mod client;
mod protobuf;
mod text;

use std::sync::Arc;

use serde::Deserialize;

pub use avro::{AvroError, AvroSchema};
pub use client::{Registry, RegistryDown, RegistryError, RegistryOptions};
pub use protobuf::{ProtobufError, ProtobufSchema};

use super::document::{Document, Written, too_large, unreadable};
use super::rejection::{Reason, Rejection};

/// The byte 0 and the id of a schema.
const HEADER_BYTES: usize = 5;

/// How the values of a topic are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// As JSON, without a registry.
    #[default]
    Json,
    /// As Avro, behind a registry's header.
    Avro,
    /// As Protobuf, behind a registry's header.
    Protobuf,
    /// As JSON, behind a registry's header.
    JsonSchema,
}

/// What a registry knows of an id.
#[derive(Debug)]
pub enum Known {
    /// A schema of Avro.
    Avro(AvroSchema),
    /// A schema of Protobuf.
    Protobuf(ProtobufSchema),
    /// No schema, or one that cannot be used: why.
    Unusable(String),
}

/// How a topic's messages are unwrapped.
#[derive(Clone, Debug)]
pub enum Wire {
    /// The header is cut off.
    JsonSchema,
    /// What stands behind the header is read by the schema that the header names, whichever kind that is of.
    BySchema(Arc<Registry>),
}

/// The schemas that a message names.
#[derive(Debug, Default)]
pub struct Schemas {
    /// That of its value.
    pub value: Option<Arc<Known>>,
    /// That of its key, where the key is read.
    pub key: Option<Arc<Known>>,
}

/// Whether a key is in the wire format; other keys are read as they are.
pub(super) fn is_wrapped(bytes: &[u8]) -> bool {
    header(bytes).is_some()
}

/// The id of the schema, and what was written by it.
fn header(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    match head {
        [0, id @ ..] => Some((u32::from_be_bytes(id.try_into().ok()?), rest)),
        _ => None,
    }
}

impl Wire {
    /// What is known of the schema that these bytes name; `None` where none is named or needed.
    ///
    /// # Errors
    /// When the registry does not say.
    pub fn schema_of(&self, bytes: &[u8]) -> Result<Option<Arc<Known>>, RegistryDown> {
        match (self, header(bytes)) {
            (Self::BySchema(registry), Some((id, _))) => registry.schema(id).map(Some),
            _ => Ok(None),
        }
    }

    /// Unwraps the bytes of a value or a key, of which no more than `size_max` bytes or values are read.
    ///
    /// # Errors
    /// When there is no header, the schema cannot be used, or the bytes are not what it describes.
    pub fn document<'m>(
        &self,
        (what, bytes): (&'static str, &'m [u8]),
        schema: Option<&'m Known>,
        size_max: usize,
    ) -> Result<Document<'m>, Rejection> {
        let Some((id, bytes)) = header(bytes) else {
            let detail = format!(
                "{what} does not begin with the header of a schema registry (a byte 0 and the id of a schema); if \
                 it is plain JSON, set format = \"json\" for the topic"
            );
            return Err(Rejection::new(Reason::Undecodable, detail));
        };
        let unknown = |detail| Err(Rejection::new(Reason::UnknownSchema, detail));
        match (self, schema) {
            (Self::JsonSchema, _) => Ok(Document::of_text(bytes)),
            (Self::BySchema(_), Some(Known::Avro(schema))) => {
                Ok(Document::Avro(Written { what, id, schema, bytes, size_max }))
            }
            (Self::BySchema(_), Some(Known::Protobuf(schema))) => match schema.to_json(bytes, size_max) {
                Ok(text) => Ok(Document::Json(text.into())),
                Err(ProtobufError::TooLarge) => Err(too_large(what, size_max)),
                Err(ProtobufError::Undecodable(why)) => Err(unreadable(what, id, &why)),
            },
            (Self::BySchema(_), Some(Known::Unusable(why))) => {
                unknown(format!("schema {id} of {what}: {why}"))
            }
            (Self::BySchema(_), None) => unknown(format!("schema {id} of {what} was not looked up")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_zero_and_an_id_with_the_most_significant_byte_first() {
        assert_eq!(header(&[0, 1, 2, 3, 4, 9]), Some((0x0102_0304, &[9][..])));
        assert_eq!(header(&[0, 0, 0, 0, 1]), Some((1, &[][..])));
        for bytes in [&b""[..], &[0, 0, 0, 1], &[1, 0, 0, 0, 1, 9], b"{\"a\":1}"] {
            assert_eq!(header(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_json_value_loses_its_header_and_one_without_is_refused_with_what_to_do() {
        let wire = Wire::JsonSchema;
        let text = |bytes| wire.document(("the value", bytes), None, 99).and_then(Document::into_text);
        assert_eq!(&*text(b"\0\0\0\0\x07{}").unwrap(), b"{}");
        let rejection = text(b"{\"src\":1}").unwrap_err();
        assert_eq!(rejection.reason, Reason::Undecodable);
        assert!(rejection.detail.contains("set format = \"json\""), "{rejection}");
        assert!(wire.schema_of(b"\0\0\0\0\x07{}").unwrap().is_none(), "nothing is fetched");
    }
}
