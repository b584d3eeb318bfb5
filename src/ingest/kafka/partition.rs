//! One partition's way through the source: messages gather in a pending batch; one batch at a time is on
//! its way to the log. So batches of a partition never overtake one another, a refused batch leaves no
//! gap behind it, and while the log is busy the next batch grows by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::message::{BorrowedMessage, Headers, Message};

use super::status::Shared;
use crate::event::{EventBatch, Incoming, SourceRange, Submission};
use crate::ingest::SourceWiring;
use crate::ingest::admit::{AdmitCursor, Verdict};
use crate::ingest::dead_letter::{DeadLetter, unix_ms};
use crate::ingest::decode::Decoder;
use crate::ingest::rejection::{IngestStats, Rejection};

/// What is being gathered for the next batch.
#[derive(Default)]
struct Pending {
    events: Vec<Incoming>,
    offsets: Vec<i64>,
    letters: Vec<DeadLetter>,
    from: i64,
    to: i64,
    /// Messages taken, whatever became of them.
    messages: usize,
    bytes: usize,
    origin_unix_ms: i64,
    since: Option<Instant>,
}

/// A batch on its way to the log.
pub(super) struct InFlight {
    pub from: i64,
    pub to: i64,
}

pub(super) struct Partition {
    /// Separates outcomes of this ownership from those of an earlier one.
    pub epoch: u64,
    pub in_flight: Option<InFlight>,
    /// A batch that found the queue to the log full.
    pub ready: Option<Submission>,
    /// After a refusal nothing is submitted before this moment.
    pub wait_until: Option<Instant>,
    /// A refusal takes reading back to this offset; until the seek has succeeded messages are ignored.
    pub seek_to: Option<Offset>,
    /// librdkafka fetches no more of it and does not take a seek: it has to be assigned anew.
    pub is_stuck: bool,
    /// From this moment on it is to be found out whether the broker has what is read next.
    pub range_check_at: Option<Instant>,
    /// When that was found out last.
    pub range_checked: Option<Instant>,
    /// The next offset to read; `None` before the first message of a partition that the log does not know.
    next: Option<i64>,
    /// Offsets below this were counted before.
    counted: i64,
    /// Refused events below this offset were delivered as dead letters before.
    lettered: i64,
    cursor: AdmitCursor,
    pending: Pending,
}

/// The bounds at which a batch is handed over, and at which reading waits.
pub(super) struct Bounds {
    pub messages: usize,
    pub wait: Duration,
    pub max_messages: usize,
    pub max_bytes: usize,
}

impl Partition {
    pub fn new(epoch: u64, next: Option<i64>, cursor: AdmitCursor) -> Self {
        Self {
            epoch,
            in_flight: None,
            ready: None,
            wait_until: None,
            seek_to: None,
            is_stuck: false,
            range_check_at: None,
            range_checked: None,
            next,
            counted: i64::MIN,
            lettered: i64::MIN,
            cursor,
            pending: Pending::default(),
        }
    }

    /// Takes a message into the pending batch.
    pub fn take(
        &mut self,
        message: &BorrowedMessage<'_>,
        source: &Arc<str>,
        decoder: &Decoder,
        stats: &IngestStats,
    ) {
        let offset = message.offset();
        // Already taken, or a seek is outstanding: it comes again.
        if self.seek_to.is_some() || self.next.is_some_and(|next| offset < next) {
            return;
        }
        let first_time = offset >= self.counted;
        if self.pending.since.is_none() {
            self.pending.since = Some(Instant::now());
            // A run starts where the last one ended, so that offsets without messages (transaction
            // markers, compacted ones) belong to a run too.
            self.pending.from = self.next.unwrap_or(offset);
            self.pending.origin_unix_ms = message.timestamp().to_millis().unwrap_or_else(unix_ms);
        }
        self.next = Some(offset + 1);
        self.counted = self.counted.max(offset + 1);
        self.pending.to = offset + 1;
        self.pending.messages += 1;
        self.pending.bytes += message.payload_len() + message.key_len() + 64;
        if first_time {
            stats.count_received(1);
        }
        let decoded = match message.payload() {
            Some(payload) => decoder.event(payload),
            None => decoder.tombstone(message.key()),
        };
        let refused = match decoded {
            Ok(incoming) => match self.cursor.judge(&incoming.event) {
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
            },
            Err(rejection) => Some(rejection),
        };
        let Some(rejection) = refused else { return };
        if first_time {
            stats.count_rejected(rejection.reason);
        }
        if offset >= self.lettered {
            self.pending.letters.push(letter(message, source, rejection));
        }
    }

    /// Whether reading must wait for the log.
    pub fn is_full(&self, bounds: &Bounds) -> bool {
        self.pending.messages >= bounds.max_messages || self.pending.bytes >= bounds.max_bytes
    }

    /// Whether the pending batch should be handed over now.
    pub fn is_due(&self, bounds: &Bounds) -> bool {
        let Some(since) = self.pending.since else { return false };
        let busy = self.in_flight.is_some() || self.ready.is_some() || self.seek_to.is_some();
        let waiting = self.wait_until.is_some_and(|until| Instant::now() < until);
        let enough = self.pending.messages >= bounds.messages || self.is_full(bounds);
        !busy && !waiting && (enough || since.elapsed() >= bounds.wait)
    }

    /// Delivers the dead letters of the pending batch, which come before the batch. When that fails, the batch
    /// stays and is due again later.
    pub fn deliver_letters(
        &mut self,
        wiring: &SourceWiring,
        stats: &IngestStats,
        shared: &Shared,
        retry_wait: Duration,
    ) -> bool {
        let letters = &self.pending.letters;
        if letters.is_empty() {
            return true;
        }
        match wiring.dead_letters.deliver(letters) {
            Ok(()) => {
                stats.count_dead_letters(letters.len() as u64);
                shared.set_undelivered(None);
                true
            }
            Err(error) => {
                shared.set_undelivered(Some(error.to_string()));
                self.wait_until = Some(Instant::now() + retry_wait);
                false
            }
        }
    }

    /// Closes the pending batch, whose dead letters are delivered.
    pub fn close_batch(&mut self, source: &Arc<str>, partition: i32) -> EventBatch {
        let pending = std::mem::take(&mut self.pending);
        self.lettered = self.lettered.max(pending.to);
        self.cursor.seal();
        self.in_flight = Some(InFlight { from: pending.from, to: pending.to });
        EventBatch {
            events: pending.events,
            offsets: pending.offsets,
            ranges: vec![SourceRange {
                source: Arc::clone(source),
                partition,
                from: pending.from,
                to: pending.to,
            }],
            gap_allowed: false,
            origin_unix_ms: pending.origin_unix_ms,
        }
    }

    /// The batch in flight is durable; returns the partition's new position.
    pub fn stored(&mut self) -> Option<i64> {
        let in_flight = self.in_flight.take()?;
        self.cursor.commit();
        self.wait_until = None;
        Some(in_flight.to)
    }

    /// The batch in flight was refused: forgets everything from its start on, to be read again.
    pub fn refused(&mut self, wait_until: Instant) {
        let Some(in_flight) = self.in_flight.take() else { return };
        self.pending = Pending::default();
        self.cursor.rewind();
        self.wait_until = Some(wait_until);
        self.seek_to = Some(Offset::Offset(in_flight.from));
        self.next = Some(in_flight.from);
    }

    /// Where reading stands.
    pub fn next(&self) -> Option<i64> {
        self.next
    }

    /// Whether a batch is on its way to the log.
    pub fn is_on_its_way(&self) -> bool {
        self.in_flight.is_some() || self.ready.is_some()
    }

    /// Forgets what was not handed over and reads from `next` on, or from the oldest message.
    pub fn start_again(&mut self, next: Option<i64>) {
        self.range_checked = Some(Instant::now());
        self.pending = Pending::default();
        self.cursor.rewind();
        self.next = next;
        self.seek_to = Some(next.map_or(Offset::Beginning, Offset::Offset));
        self.is_stuck = true;
    }
}

fn letter(message: &BorrowedMessage<'_>, source: &Arc<str>, rejection: Rejection) -> DeadLetter {
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
