//! Messages into the batch that is gathered: read, admitted, or turned into a dead letter.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::message::{BorrowedMessage, Headers, Message as _};

use super::Partition;
use crate::event::Incoming;
use crate::ingest::admit::Verdict;
use crate::ingest::dead_letter::unix_ms;
use crate::ingest::kafka::letter::letter;
use crate::ingest::mapping::{Decoded, Message, MessageReader};
use crate::ingest::registry::Schemas;
use crate::ingest::rejection::{IngestStats, Reason, Rejection};

impl Partition {
    /// Takes a message into the pending batch; returns whether it counts. [`mark`](Self::mark) makes it the last one of
    /// its run. One whose schema cannot be had now is not taken, and comes again after `retry_wait`. Of a message whose
    /// events the stream's rules refuse there is one dead letter, with the first reason.
    pub fn take(
        &mut self,
        message: &BorrowedMessage<'_>,
        (source, reader): (&Arc<str>, &MessageReader),
        stats: &IngestStats,
        retry_wait: Duration,
    ) -> bool {
        let offset = message.offset();
        // Already taken, or to be read again later.
        let is_cut = self.cut.is_some_and(|cut| offset >= cut);
        if self.is_ignoring() || is_cut || offset < self.next {
            return false;
        }
        let schemas = match reader.schemas(message.key(), message.payload()) {
            Ok(schemas) => schemas,
            Err(down) => {
                self.wait_for_schema(down.to_string(), retry_wait);
                return false;
            }
        };
        let first_time = offset >= self.counted;
        self.note(message);
        let read = self.read(message, reader, &schemas);
        if first_time {
            let events = if let Ok(Decoded::Many(events)) = &read { events.len() as u64 } else { 1 };
            stats.count_received(events);
        }
        let mut refused = Vec::new();
        match read {
            Ok(Decoded::Ignored) if first_time => stats.count_ignored(),
            Ok(events) => {
                let events = events.into_events();
                refused.extend(events.filter_map(|event| self.admit(event, offset, first_time, stats)));
            }
            Err(rejection) => refused.push(rejection),
        }
        // One that the log cannot store was read before, and had no letter then.
        let is_new = self.unstorable.get(&offset).map_or(first_time, |event| !event.is_lettered);
        if is_new {
            refused.iter().for_each(|rejection| stats.count_rejected(rejection.reason));
        }
        if (is_new || offset >= self.lettered)
            && let Some(rejection) = refused.into_iter().next()
        {
            self.pending.letters.push(letter(message, source, rejection));
        }
        true
    }

    /// Adds an event to the batch, or returns why the stream's rules refuse it.
    fn admit(
        &mut self,
        incoming: Incoming,
        offset: i64,
        first_time: bool,
        stats: &IngestStats,
    ) -> Option<Rejection> {
        match self.cursor.judge(&incoming.event) {
            verdict @ (Verdict::Accept | Verdict::AcceptLate) => {
                if first_time && verdict == Verdict::AcceptLate {
                    stats.count_late_accepted();
                }
                self.pending.events.push(incoming);
                self.pending.offsets.push(offset);
                None
            }
            Verdict::Drop(_) => {
                if first_time {
                    stats.count_late_dropped();
                }
                None
            }
            Verdict::Refuse(rejection) => Some(rejection),
        }
    }

    /// Adds a message to the run that is gathered.
    fn note(&mut self, message: &BorrowedMessage<'_>) {
        let offset = message.offset();
        self.end = None;
        if self.pending.since.is_none() {
            self.pending.since = Some(Instant::now());
            // A run starts where the last one ended, with all offsets before its first message.
            self.pending.from = self.next;
            let timestamp = message.timestamp().to_millis();
            self.pending.origin_unix_ms = self.origins.of(offset, timestamp, unix_ms());
        }
        self.next = offset + 1;
        self.counted = self.counted.max(offset + 1);
        self.pending.to = offset + 1;
        self.pending.messages += 1;
        self.pending.bytes += message.payload_len() + message.key_len() + 64;
    }

    /// The events of a message.
    fn read(
        &self,
        message: &BorrowedMessage<'_>,
        reader: &MessageReader,
        schemas: &Schemas,
    ) -> Result<Decoded, Rejection> {
        if let Some(event) = self.unstorable.get(&message.offset()) {
            return Err(Rejection::new(Reason::Unstorable, event.detail.as_str()));
        }
        let Some(value) = message.payload() else { return reader.tombstone_with(message.key(), schemas) };
        let header = |name: &str| {
            let mut headers = message.headers()?.iter();
            headers.find(|header| header.key.eq_ignore_ascii_case(name))?.value
        };
        reader.read_with(&Message { key: message.key(), value, header: &header }, schemas)
    }
}
