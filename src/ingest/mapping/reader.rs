//! Messages to events, with a mapping or without one, unwrapped first where a schema registry is used.

use std::borrow::Cow;
use std::sync::Arc;

use super::message::Around;
use super::{Decoded, Mapping, Message};
use crate::ingest::decode::{DecodeOptions, Decoder, Tombstones};
use crate::ingest::document::Document;
use crate::ingest::registry::{RegistryDown, Schemas, Wire, is_wrapped};
use crate::ingest::rejection::{Reason, Rejection};

/// Reads messages of a source.
#[derive(Clone, Debug, Default)]
pub struct MessageReader {
    decoder: Decoder,
    mapping: Option<Arc<Mapping>>,
    wire: Option<Wire>,
}

impl MessageReader {
    /// A reader with these bounds; without a mapping a message is an event as `decode` describes it.
    #[must_use]
    pub fn new(options: DecodeOptions, mapping: Option<Arc<Mapping>>) -> Self {
        Self { decoder: Decoder::new(options), mapping, wire: None }
    }

    /// The same for messages in the wire format of a schema registry.
    #[must_use]
    pub fn with_wire(self, wire: Option<Wire>) -> Self {
        Self { wire, ..self }
    }

    /// The schemas that a message with this key and value names, fetched where they are not known yet.
    ///
    /// # Errors
    /// When the registry does not say: the message is to be read later.
    pub fn schemas(&self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Schemas, RegistryDown> {
        let Some(wire) = &self.wire else { return Ok(Schemas::default()) };
        let of = |bytes: Option<&[u8]>| bytes.map_or(Ok(None), |bytes| wire.schema_of(bytes));
        let key = key.filter(|_| self.reads_key(value.is_none()));
        Ok(Schemas { value: of(value)?, key: of(key)? })
    }

    /// Reads a message with a value, by the schemas that it names.
    ///
    /// # Errors
    /// The rejection names the field, where it is read, and what was found there.
    pub fn read_with(&self, message: &Message<'_>, schemas: &Schemas) -> Result<Decoded, Rejection> {
        let value = self.value(message.value, schemas)?;
        let Some(mapping) = &self.mapping else { return self.decoder.document(&value).map(Decoded::One) };
        let key = self.key(message.key, schemas, false)?;
        let header = |name: &str| (message.header)(name);
        mapping.read(&value, &Around { key: key.as_ref(), header: &header }, &self.decoder)
    }

    /// Reads a document that comes without a key or headers.
    ///
    /// # Errors
    /// As [`read_with`](Self::read_with).
    pub fn read_document(&self, document: &Document<'_>) -> Result<Decoded, Rejection> {
        match &self.mapping {
            None => self.decoder.document(document).map(Decoded::One),
            Some(mapping) => mapping.read(document, &Around::NOTHING, &self.decoder),
        }
    }

    /// Reads a message without a value, by the schemas that it names.
    ///
    /// # Errors
    /// When it is to be rejected, or its key names nothing to delete.
    pub fn tombstone_with(&self, key: Option<&[u8]>, schemas: &Schemas) -> Result<Decoded, Rejection> {
        let key = self.key(key, schemas, true)?.map(Document::into_text).transpose()?;
        Ok(self.decoder.tombstone(key.as_deref())?.map_or(Decoded::Ignored, Decoded::One))
    }

    /// Reads a message with a value.
    ///
    /// # Errors
    /// As [`read_with`](Self::read_with); a registry that does not respond is an error as well.
    pub fn read(&self, message: &Message<'_>) -> Result<Decoded, Rejection> {
        let schemas = self.schemas(message.key, Some(message.value)).map_err(rejection)?;
        self.read_with(message, &schemas)
    }

    /// Reads a message without a value.
    ///
    /// # Errors
    /// As [`tombstone_with`](Self::tombstone_with); a registry that does not respond is an error as well.
    pub fn tombstone(&self, key: Option<&[u8]>) -> Result<Decoded, Rejection> {
        let schemas = self.schemas(key, None).map_err(rejection)?;
        self.tombstone_with(key, &schemas)
    }

    /// A value as JSON text.
    ///
    /// # Errors
    /// When it cannot be unwrapped, or the registry does not respond.
    pub fn text(&self, value: &[u8]) -> Result<Vec<u8>, Rejection> {
        let schemas = self.schemas(None, Some(value)).map_err(rejection)?;
        self.value(value, &schemas)?.into_text().map(Cow::into_owned)
    }

    fn value<'m>(&self, value: &'m [u8], schemas: &'m Schemas) -> Result<Document<'m>, Rejection> {
        let Some(wire) = &self.wire else { return Ok(Document::of_text(value)) };
        self.decoder.check_size(value)?;
        wire.document(("the value", value), schemas.value.as_deref(), self.decoder.options().max_event_bytes)
    }

    /// What a key is read from. One without a header is taken as it is.
    fn key<'m>(
        &self,
        key: Option<&'m [u8]>,
        schemas: &'m Schemas,
        is_tombstone: bool,
    ) -> Result<Option<Document<'m>>, Rejection> {
        match (&self.wire, key) {
            (Some(wire), Some(key)) if self.reads_key(is_tombstone) && is_wrapped(key) => {
                let size_max = self.decoder.options().max_event_bytes;
                wire.document(("the key", key), schemas.key.as_deref(), size_max).map(Some)
            }
            (_, key) => Ok(key.map(Document::of_text)),
        }
    }

    fn reads_key(&self, is_tombstone: bool) -> bool {
        if is_tombstone {
            return self.decoder.options().tombstones == Tombstones::DeleteNode;
        }
        self.mapping.as_ref().is_some_and(|mapping| mapping.reads_key())
    }

    /// Its mapping.
    #[must_use]
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.mapping.as_ref()
    }

    /// What it reads events with.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }
}

/// For those who read a message now or not at all.
fn rejection(down: RegistryDown) -> Rejection {
    Rejection::new(Reason::UnknownSchema, down.to_string())
}
