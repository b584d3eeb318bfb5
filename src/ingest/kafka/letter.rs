//! The dead letter of a message: all of it, and why it was rejected.

use std::sync::Arc;

use rdkafka::message::{BorrowedMessage, Headers, Message};

use crate::ingest::dead_letter::{DeadLetter, unix_ms};
use crate::ingest::rejection::Rejection;

pub(super) fn letter(message: &BorrowedMessage<'_>, source: &Arc<str>, rejection: Rejection) -> DeadLetter {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect()
    });
    DeadLetter {
        source: Arc::clone(source),
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        payload: message.payload().map(<[u8]>::to_vec),
        headers,
        rejection,
        received_unix_ms: unix_ms(),
    }
}
