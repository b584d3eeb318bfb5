//! Why an event is not stored, in a fixed list of words, and the counters that go with it.
//!
//! The words are labels of a metric and values of a field in dead letters and responses, so the list is
//! short and only grows. Knows nothing of formats or transports.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thiserror::Error;

/// Why an event was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Reason {
    /// Not JSON, or not a JSON object.
    MalformedJson,
    /// A row of a file that does not fit its header.
    MalformedRow,
    /// A required field is absent or null.
    MissingField,
    /// A field holds a value of the wrong kind.
    WrongType,
    /// A node id that is empty, too long, or neither a text nor an integer.
    BadId,
    /// An event time that is not an integer in range.
    BadTime,
    /// A feature that is not a finite number.
    BadFeatures,
    /// A label that is not a finite number.
    BadLabel,
    /// A feature row of another length than the stream's.
    FeatureDimension,
    /// An event, a text or a feature row above its size limit.
    TooLarge,
    /// Earlier than the allowed lateness admits.
    TooLate,
    /// Later than the future limit admits.
    TooFarAhead,
    /// An `op` that is not known.
    UnknownOp,
    /// A null value without a key that names what to delete.
    MissingKey,
    /// A node that is new, while there are as many as the stream may have.
    TooManyNodes,
    /// A null value, where none is expected.
    Tombstone,
    /// A deletion in a mapped message, where none is expected.
    Deletion,
    /// An event that the log can never take.
    Unstorable,
    /// A schema that the registry does not know, or that cannot be used.
    UnknownSchema,
    /// Bytes that are not what their schema describes, or without a schema's id.
    Undecodable,
}

impl Reason {
    /// Every reason, in a fixed order.
    pub const ALL: [Self; 20] = [
        Self::MalformedJson,
        Self::MalformedRow,
        Self::MissingField,
        Self::WrongType,
        Self::BadId,
        Self::BadTime,
        Self::BadFeatures,
        Self::BadLabel,
        Self::FeatureDimension,
        Self::TooLarge,
        Self::TooLate,
        Self::TooFarAhead,
        Self::UnknownOp,
        Self::MissingKey,
        Self::TooManyNodes,
        Self::Tombstone,
        Self::Deletion,
        Self::Unstorable,
        Self::UnknownSchema,
        Self::Undecodable,
    ];

    /// The word used in labels, dead letters and responses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MalformedJson => "malformed_json",
            Self::MalformedRow => "malformed_row",
            Self::MissingField => "missing_field",
            Self::WrongType => "wrong_type",
            Self::BadId => "bad_id",
            Self::BadTime => "bad_time",
            Self::BadFeatures => "bad_features",
            Self::BadLabel => "bad_label",
            Self::FeatureDimension => "feature_dimension",
            Self::TooLarge => "too_large",
            Self::TooLate => "too_late",
            Self::TooFarAhead => "too_far_ahead",
            Self::UnknownOp => "unknown_op",
            Self::MissingKey => "missing_key",
            Self::TooManyNodes => "too_many_nodes",
            Self::Tombstone => "tombstone",
            Self::Deletion => "deletion",
            Self::Unstorable => "unstorable",
            Self::UnknownSchema => "unknown_schema",
            Self::Undecodable => "undecodable",
        }
    }
}

/// One refused event: the reason for machines, the detail for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {detail}", reason.as_str())]
pub struct Rejection {
    /// The reason, from the fixed list.
    pub reason: Reason,
    /// What exactly was wrong and what to do about it.
    pub detail: String,
}

impl Rejection {
    /// A rejection with its detail.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

/// Counters of one source. All are monotonic; read them with [`IngestStats::snapshot`].
#[derive(Debug, Default)]
pub struct IngestStats {
    received: AtomicU64,
    stored: AtomicU64,
    duplicates: AtomicU64,
    batches: AtomicU64,
    refused_batches: AtomicU64,
    late_accepted: AtomicU64,
    late_dropped: AtomicU64,
    ignored: AtomicU64,
    dead_letters: AtomicU64,
    pauses: AtomicU64,
    reconnects: AtomicU64,
    token_failures: AtomicU64,
    rejected: [AtomicU64; Reason::ALL.len()],
}

impl IngestStats {
    /// Counts `n` events read from the source, whatever became of them.
    pub fn count_received(&self, n: u64) {
        self.received.fetch_add(n, Relaxed);
    }

    /// Counts a batch that became durable.
    pub fn count_stored(&self, receipt: &crate::event::Receipt) {
        self.batches.fetch_add(1, Relaxed);
        self.stored.fetch_add(receipt.accepted, Relaxed);
        self.duplicates.fetch_add(receipt.duplicates, Relaxed);
    }

    /// Counts a batch that the log refused; the source hands it in again.
    pub fn count_refused_batch(&self) {
        self.refused_batches.fetch_add(1, Relaxed);
    }

    /// Counts an event that was late and accepted all the same.
    pub fn count_late_accepted(&self) {
        self.late_accepted.fetch_add(1, Relaxed);
    }

    /// Counts an event that was late and dropped by policy.
    pub fn count_late_dropped(&self) {
        self.late_dropped.fetch_add(1, Relaxed);
    }

    /// Counts a message that was ignored: one without a value, or a deletion of a mapping that ignores them.
    pub fn count_ignored(&self) {
        self.ignored.fetch_add(1, Relaxed);
    }

    /// Counts `n` events delivered as dead letters.
    pub fn count_dead_letters(&self, n: u64) {
        self.dead_letters.fetch_add(n, Relaxed);
    }

    /// Counts one time that the source paused because the queue to the log was full.
    pub fn count_pause(&self) {
        self.pauses.fetch_add(1, Relaxed);
    }

    /// Counts a new client in place of one that found no broker.
    pub fn count_reconnect(&self) {
        self.reconnects.fetch_add(1, Relaxed);
    }

    /// Counts `n` times that no token to log in with could be had.
    pub fn count_token_failures(&self, n: u64) {
        self.token_failures.fetch_add(n, Relaxed);
    }

    /// Counts a refused event by its reason.
    pub fn count_rejected(&self, reason: Reason) {
        // The enum's discriminants are the array's indices.
        if let Some(counter) = self.rejected.get(reason as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// The counters now. They are read one after another, so sums may be off by events in flight.
    #[must_use]
    pub fn snapshot(&self) -> IngestSnapshot {
        IngestSnapshot {
            received: self.received.load(Relaxed),
            stored: self.stored.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            batches: self.batches.load(Relaxed),
            refused_batches: self.refused_batches.load(Relaxed),
            late_accepted: self.late_accepted.load(Relaxed),
            late_dropped: self.late_dropped.load(Relaxed),
            ignored: self.ignored.load(Relaxed),
            dead_letters: self.dead_letters.load(Relaxed),
            pauses: self.pauses.load(Relaxed),
            reconnects: self.reconnects.load(Relaxed),
            token_failures: self.token_failures.load(Relaxed),
            rejected: Reason::ALL
                .iter()
                .zip(&self.rejected)
                .map(|(reason, count)| (reason.as_str(), count.load(Relaxed)))
                .collect(),
        }
    }
}

/// The counters of one source at one moment; see [`IngestStats`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestSnapshot {
    /// Events read, whatever became of them.
    pub received: u64,
    /// Events that are durable and indexed.
    pub stored: u64,
    /// Events that had been stored before.
    pub duplicates: u64,
    /// Batches that are durable and indexed.
    pub batches: u64,
    /// Batches that the log refused for a while.
    pub refused_batches: u64,
    /// Late events that were accepted.
    pub late_accepted: u64,
    /// Late events that were dropped by policy.
    pub late_dropped: u64,
    /// Messages that were ignored: those without a value, and deletions of a mapping that ignores them.
    pub ignored: u64,
    /// Events delivered as dead letters.
    pub dead_letters: u64,
    /// Times the source paused because the queue to the log was full.
    pub pauses: u64,
    /// Times the source began with a new client because the old one found no broker.
    pub reconnects: u64,
    /// Times no token to log in with could be had.
    pub token_failures: u64,
    /// Refused events by reason; every reason is listed.
    pub rejected: Vec<(&'static str, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_word() {
        let stats = IngestStats::default();
        for (i, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
            for _ in 0..=i {
                stats.count_rejected(reason);
            }
        }
        let rejected = stats.snapshot().rejected;
        for (i, (word, count)) in rejected.iter().enumerate() {
            assert_eq!(*count, i as u64 + 1, "{word}");
            assert_eq!(rejected.iter().filter(|(other, _)| other == word).count(), 1, "{word} stands twice");
        }
    }
}
