//! Messages to events, with a mapping or without one.

use std::sync::Arc;

use super::{Decoded, Mapping, Message};
use crate::ingest::decode::{DecodeOptions, Decoder};
use crate::ingest::rejection::Rejection;

/// Reads messages of a source.
#[derive(Clone, Debug, Default)]
pub struct MessageReader {
    decoder: Decoder,
    mapping: Option<Arc<Mapping>>,
}

impl MessageReader {
    /// A reader with these bounds; without a mapping a message is an event as `decode` describes it.
    #[must_use]
    pub fn new(options: DecodeOptions, mapping: Option<Arc<Mapping>>) -> Self {
        Self { decoder: Decoder::new(options), mapping }
    }

    /// Reads a message with a value.
    ///
    /// # Errors
    /// The rejection names the field, where it is read, and what was found there.
    pub fn read(&self, message: &Message<'_>) -> Result<Decoded, Rejection> {
        match &self.mapping {
            None => self.decoder.event(message.value).map(Decoded::One),
            Some(mapping) => mapping.read(message, &self.decoder),
        }
    }

    /// Reads a message without a value.
    ///
    /// # Errors
    /// When it is to be rejected, or its key names nothing to delete.
    pub fn tombstone(&self, key: Option<&[u8]>) -> Result<Decoded, Rejection> {
        Ok(self.decoder.tombstone(key)?.map_or(Decoded::Ignored, Decoded::One))
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
