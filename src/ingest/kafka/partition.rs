//! One partition's way through the source: messages gather in a pending batch; one batch at a time is on
//! its way to the log. So batches of a partition never overtake one another, a refused batch leaves no
//! gap behind it, and while the log is busy the next batch grows by itself.
//!
//! Not every offset holds a message: some are markers of transactions, messages that were given up, or compacted ones.
//! Those before a message belong to its run. Those at the end belong to the run of the last messages if they come with
//! them, as they do behind a commit, and else get a run without events when the partition has been at its end for a
//! moment. So a position is never behind what was read, and retention of what holds no message is no loss.
//!
//! A batch that the log can never store is read again without the events that it named, which are dead letters then, or
//! in halves where it is too large as a whole.

mod take;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::message::BorrowedMessage;

use super::context::Start;
use super::identity::mark_of;
use super::origin::Origins;
use super::status::Shared;
use crate::event::{EventBatch, Incoming, SourceMark, SourceRange, Submission, UnstorableEvent};
use crate::ingest::SourceWiring;
use crate::ingest::admit::AdmitCursor;
use crate::ingest::dead_letter::{DeadLetter, unix_ms};
use crate::ingest::rejection::IngestStats;

/// After so long at its end, a partition's offsets without messages get a run of their own.
pub(super) const END_WAIT: Duration = Duration::from_secs(1);

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
    /// The last message.
    mark: Option<SourceMark>,
    since: Option<Instant>,
}

/// A batch on its way to the log.
pub(super) struct InFlight {
    pub from: i64,
    pub to: i64,
    mark: Option<SourceMark>,
    /// Whether they are of several messages.
    is_divisible: bool,
    /// The offset of the message in its middle, which is not the first one if there are several.
    middle: i64,
}

/// A wait for a schema.
pub(super) struct SchemaWait {
    pub until: Instant,
    /// Why it is waited, until that was reported.
    pub unreported: Option<String>,
}

/// An event that the log can never store.
struct Unstorable {
    detail: String,
    /// Whether its dead letter was delivered.
    is_lettered: bool,
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
    pub seek_to: Option<i64>,
    /// librdkafka fetches no more of it and does not take a seek: it has to be assigned anew.
    pub is_stuck: bool,
    /// From this moment on it is to be found out whether the broker has what is read next; until then messages are
    /// ignored.
    pub range_check_at: Option<Instant>,
    /// When that was found out last.
    pub range_checked: Option<Instant>,
    /// The next message names a schema that cannot be had now; until then messages are ignored.
    pub schema_wait: Option<SchemaWait>,
    /// Whether there was such a wait since the last message that was taken.
    pub has_waited: bool,
    /// The next offset to read.
    next: i64,
    /// Up to where the log has the partition.
    stored: i64,
    /// The last message below that.
    mark: Option<SourceMark>,
    /// Offsets from `next` up to this one hold no message, known since then.
    end: Option<(i64, Instant)>,
    origins: Origins,
    /// By offset.
    unstorable: BTreeMap<i64, Unstorable>,
    /// The batch that is gathered ends before this offset; messages from there on are ignored and come again.
    cut: Option<i64>,
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
    pub fn new(
        epoch: u64,
        start: &Start,
        cursor: AdmitCursor,
        mark: Option<SourceMark>,
        origins: Origins,
    ) -> Self {
        Self {
            epoch,
            in_flight: None,
            ready: None,
            wait_until: None,
            seek_to: None,
            is_stuck: false,
            range_check_at: None,
            range_checked: None,
            schema_wait: None,
            has_waited: false,
            next: start.next,
            stored: start.next,
            mark,
            end: None,
            origins,
            unstorable: BTreeMap::new(),
            cut: None,
            counted: i64::MIN,
            lettered: i64::MIN,
            cursor,
            pending: Pending::default(),
        }
    }

    /// The last message that was taken, before the batch is closed.
    pub fn mark(&mut self, message: &BorrowedMessage<'_>) {
        self.pending.mark = Some(mark_of(message));
    }

    /// Whether messages are ignored, because they come again or may be others.
    fn is_ignoring(&self) -> bool {
        self.seek_to.is_some() || self.range_check_at.is_some() || self.schema_wait.is_some()
    }

    /// At the end of the partition: everything before `position` was delivered, as far as there was a message.
    pub fn reached_end(&mut self, position: i64) {
        // A report from before a seek is not about what is read again since.
        let is_unread = self.is_ignoring() || self.cut.is_some() || self.next < self.counted;
        if is_unread || position <= self.next {
            return;
        }
        let since = self.end.map_or_else(Instant::now, |(_, since)| since);
        self.end = Some((position, since));
    }

    /// Whether all that remains is offsets without messages, at the end.
    pub fn is_at_unstored_end(&self) -> bool {
        let is_idle = !self.is_on_its_way() && !self.is_ignoring() && self.pending.since.is_none();
        is_idle && self.next == self.stored && self.end.is_some()
    }

    /// Whether reading must wait for the log.
    pub fn is_full(&self, bounds: &Bounds) -> bool {
        let (messages, events) = (self.pending.messages, self.pending.events.len());
        messages.max(events) >= bounds.max_messages || self.pending.bytes >= bounds.max_bytes
    }

    /// Whether the pending batch should be handed over now.
    pub fn is_due(&self, bounds: &Bounds) -> bool {
        if self.wait_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let Some(since) = self.pending.since else {
            let has_ended = self.end.is_some_and(|(_, since)| since.elapsed() >= END_WAIT);
            return has_ended && self.is_at_unstored_end();
        };
        let busy = self.is_on_its_way() || self.seek_to.is_some();
        let enough = self.pending.messages >= bounds.messages || self.is_full(bounds);
        !busy && (enough || since.elapsed() >= bounds.wait)
    }

    /// How long from `now` a pending batch that nothing is added to waits until it is due. `None` where that is not a
    /// matter of time.
    pub fn due_in(&self, bounds: &Bounds, now: Instant) -> Option<Duration> {
        let since = self.pending.since.filter(|_| self.seek_to.is_none())?;
        let due = (since + bounds.wait).max(self.wait_until.unwrap_or(since));
        Some(due.saturating_duration_since(now))
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
        let mut pending = std::mem::take(&mut self.pending);
        if pending.since.is_none() {
            (pending.from, pending.to, pending.origin_unix_ms) = (self.next, self.next, unix_ms());
        }
        if let Some((end, _)) = self.end.take() {
            (pending.to, self.next) = (end, end);
        }
        let mark = pending.mark.or(self.mark);
        self.lettered = self.lettered.max(pending.to);
        self.unstorable.range_mut(..pending.to).for_each(|(_, event)| event.is_lettered = true);
        self.cursor.seal();
        let (middle, is_divisible) = middle_of(&pending.offsets, pending.from);
        self.in_flight = Some(InFlight { from: pending.from, to: pending.to, mark, is_divisible, middle });
        EventBatch {
            events: pending.events,
            offsets: pending.offsets,
            ranges: vec![SourceRange {
                source: Arc::clone(source),
                partition,
                from: pending.from,
                to: pending.to,
                mark,
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
        (self.stored, self.mark) = (in_flight.to, in_flight.mark);
        self.unstorable = self.unstorable.split_off(&in_flight.to);
        if self.cut.take().is_some() {
            self.read_again_from(in_flight.to);
        }
        Some(in_flight.to)
    }

    /// The batch in flight was refused: forgets everything from its start on, to be read again.
    pub fn refused(&mut self, wait_until: Instant) {
        let Some(in_flight) = self.in_flight.take() else { return };
        self.wait_until = Some(wait_until);
        self.read_again_from(in_flight.from);
    }

    /// The batch in flight can never be stored as it is: because of these events, or because of its size.
    pub fn refused_for_good(&mut self, events: Vec<UnstorableEvent>, detail: String) {
        let Some(in_flight) = &self.in_flight else { return };
        let note = |detail: String| Unstorable { detail, is_lettered: false };
        if !events.is_empty() {
            let named = events.into_iter().filter_map(|event| Some((event.offset?, note(event.detail))));
            self.unstorable.extend(named);
        } else if in_flight.is_divisible {
            self.cut = Some(in_flight.middle);
        } else {
            self.unstorable.insert(in_flight.middle, note(detail));
        }
        self.refused(Instant::now());
    }

    fn read_again_from(&mut self, offset: i64) {
        self.pending = Pending::default();
        self.cursor.rewind();
        self.seek_to = Some(offset);
        self.next = offset;
        self.end = None;
    }

    /// Waits with the message that comes next, and with all behind it.
    fn wait_for_schema(&mut self, why: String, retry_wait: Duration) {
        self.schema_wait = Some(SchemaWait { until: Instant::now() + retry_wait, unreported: Some(why) });
        self.has_waited = true;
    }

    /// Reads on from where the wait began; what was gathered before stays.
    pub fn end_schema_wait(&mut self) {
        self.schema_wait = None;
        self.seek_to.get_or_insert(self.next);
    }

    /// Up to where the log has the partition.
    pub fn stored_end(&self) -> i64 {
        self.stored
    }

    /// Whether a batch is on its way to the log.
    pub fn is_on_its_way(&self) -> bool {
        self.in_flight.is_some() || self.ready.is_some()
    }

    /// Forgets what was not handed over and reads from `next` on.
    pub fn start_again(&mut self, next: i64) {
        self.range_checked = Some(Instant::now());
        self.range_check_at = None;
        self.cut = None;
        self.read_again_from(next);
        self.stored = next;
        self.is_stuck = true;
    }
}

/// The offset in the middle of these, ascending, and whether what is before it can be parted from the rest. Events of
/// one message have one offset.
fn middle_of(offsets: &[i64], from: i64) -> (i64, bool) {
    let (Some(&first), Some(&half)) = (offsets.first(), offsets.get(offsets.len() / 2)) else {
        return (from, false);
    };
    let middle =
        if half > first { Some(half) } else { offsets.iter().copied().find(|&offset| offset > first) };
    (middle.unwrap_or(first), middle.is_some())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ingest::admit::{Admission, AdmitOptions};

    /// A partition whose pending batch got its first message then.
    pub fn gathering(since: Option<Instant>) -> Partition {
        let cursor = Admission::new(AdmitOptions::default()).cursor(&"kafka:t".into(), 0, None);
        let start = Start { next: 0, low: 0, high: 0 };
        let mut partition = Partition::new(1, &start, cursor, None, Origins::new(None, 0, 0));
        partition.pending.since = since;
        partition
    }

    #[test]
    fn a_batch_is_parted_between_messages() {
        for (offsets, expected) in [
            (&[][..], (7, false)),
            (&[9], (9, false)),
            (&[9, 9, 9], (9, false)),
            (&[8, 9], (9, true)),
            (&[8, 8, 8, 9], (9, true)),
            (&[8, 9, 9, 9], (9, true)),
            (&[1, 2, 3, 4], (3, true)),
        ] {
            assert_eq!(middle_of(offsets, 7), expected, "{offsets:?}");
        }
    }
}
