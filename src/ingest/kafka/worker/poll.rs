//! A round of polling: messages go to their partitions, ends of partitions are noted, faults are taken up.
//!
//! What is asked of the client costs as much as there are partitions, so it is asked for all ends together, and seldom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};

use super::super::fault::KafkaFault;
use super::super::partition::{Bounds, END_WAIT, Partition};
use super::Worker;

/// Messages between two turns of everything else.
const MESSAGES_PER_ROUND: usize = 512;
/// How long a poll waits for a message at most.
const POLL: Duration = Duration::from_millis(20);
/// The same while the log has a batch.
const POLL_BESIDE_OUTCOMES: Duration = Duration::from_millis(2);

/// Partitions that have ended, until it is asked how far they were read.
#[derive(Debug, Default)]
pub(super) struct Ends {
    ended: BTreeSet<i32>,
    asked_at: Option<Instant>,
}

impl Ends {
    fn note(&mut self, partition: i32) {
        self.ended.insert(partition);
    }

    /// The partitions to ask for now; none shortly after others were asked for.
    fn due(&mut self, now: Instant) -> BTreeSet<i32> {
        let rests = self.asked_at.is_some_and(|at| now.saturating_duration_since(at) < END_WAIT);
        if rests || self.ended.is_empty() {
            return BTreeSet::new();
        }
        self.asked_at = Some(now);
        self.take()
    }

    /// A partition is read from elsewhere now, and until something came from there its position is the old one.
    pub fn forget(&mut self, partition: i32) {
        self.ended.remove(&partition);
    }

    /// All of them.
    pub fn take(&mut self) -> BTreeSet<i32> {
        std::mem::take(&mut self.ended)
    }
}

impl Worker {
    pub(super) fn poll_round(&mut self) -> Result<(), KafkaFault> {
        let mut timeout = patience(self.partitions.values(), &self.bounds, Instant::now());
        let (mut last, mut failed) = (None, None);
        for _ in 0..MESSAGES_PER_ROUND {
            let polled = self.consumer.poll(timeout);
            let changed = &self.consumer.context().topic_changed;
            if changed.load(Relaxed) && changed.swap(false, Relaxed) {
                make_checks_due(&mut self.partitions, self.options.retry_wait);
            }
            match polled {
                None => break,
                Some(Ok(message)) => {
                    if self.fault_shown {
                        self.shared.message_arrived();
                    }
                    let id = message.partition();
                    let Some(partition) = self.partitions.get_mut(&id) else { continue };
                    let (reader, stats) = (&self.reader, &self.stats);
                    let taken =
                        partition.take(&message, (&self.source, reader), stats, self.options.retry_wait);
                    if taken && std::mem::take(&mut partition.has_waited) {
                        self.shared.schema_known(id);
                    }
                    let is_full = partition.is_full(&self.bounds);
                    if taken && let Some(before) = last.replace(message).filter(|m| m.partition() != id) {
                        mark(&mut self.partitions, &before);
                    }
                    if is_full {
                        break;
                    }
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => self.ends.note(partition),
                Some(Err(error)) => {
                    failed = Some(error);
                    break;
                }
            }
            timeout = Duration::ZERO;
        }
        if let Some(message) = last {
            mark(&mut self.partitions, &message);
        }
        if let Some(error) = failed {
            self.poll_error(&error)?;
        }
        self.fault_shown = !self.shared.is_well();
        let ended = self.ends.due(Instant::now());
        self.take_ends(&ended);
        Ok(())
    }

    /// Takes note of how far partitions were read that have ended. The client's position includes what is no message to
    /// a reader, and nothing that was not polled yet.
    pub(super) fn take_ends(&mut self, ended: &BTreeSet<i32>) {
        if ended.is_empty() {
            return;
        }
        let positions = match self.consumer.position() {
            Ok(positions) => positions,
            Err(error) => return tracing::debug!(%error, "how far partitions were read is not known"),
        };
        for element in positions.elements().iter().filter(|element| ended.contains(&element.partition())) {
            if let Offset::Offset(position) = element.offset()
                && let Some(partition) = self.partitions.get_mut(&element.partition())
            {
                partition.reached_end(position);
            }
        }
    }

    fn poll_error(&mut self, error: &KafkaError) -> Result<(), KafkaFault> {
        match error {
            KafkaError::MessageConsumptionFatal(code) => Err(self.named(*code, &error.to_string())),
            KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset) => {
                make_checks_due(&mut self.partitions, self.options.retry_wait);
                Ok(())
            }
            // Named by the error callback already, or about to be.
            _ => Ok(()),
        }
    }
}

/// How long to wait for a message. Polling notices neither an outcome, so polls are short while one is due, nor that a
/// batch has waited for long enough.
fn patience<'a>(partitions: impl Iterator<Item = &'a Partition>, bounds: &Bounds, now: Instant) -> Duration {
    let of = |partition: &Partition| {
        if partition.is_on_its_way() { Some(POLL_BESIDE_OUTCOMES) } else { partition.due_in(bounds, now) }
    };
    // The client counts whole milliseconds.
    partitions.filter_map(of).min().unwrap_or(POLL).clamp(Duration::from_millis(1), POLL)
}

/// Makes a message that was taken the last one of its run. Messages of a partition come one after the other, so this
/// reads the bytes of few.
fn mark(partitions: &mut BTreeMap<i32, Partition>, message: &BorrowedMessage<'_>) {
    if let Some(partition) = partitions.get_mut(&message.partition()) {
        partition.mark(message);
    }
}

/// Makes a check of what the broker has due for all partitions: which one it is about is not known.
fn make_checks_due(partitions: &mut BTreeMap<i32, Partition>, retry_wait: Duration) {
    let at = Instant::now();
    for partition in partitions.values_mut() {
        // A check right before did not help, so the next one waits.
        let rest = partition.range_checked.map(|checked| checked + retry_wait);
        let due = rest.map_or(at, |rest| rest.max(at));
        partition.range_check_at.get_or_insert(due);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::partition::tests::gathering;
    use super::*;

    #[test]
    fn polls_last_until_the_next_batch_is_due() {
        let (now, wait) = (Instant::now(), Duration::from_millis(10));
        let bounds = Bounds { messages: 1000, wait, max_messages: 1000, max_bytes: 1000 };
        let of = |partitions: &[Partition]| patience(partitions.iter(), &bounds, now);
        assert_eq!((of(&[]), of(&[gathering(None)])), (POLL, POLL));
        assert_eq!(of(&[gathering(None), gathering(Some(now))]), wait);
        assert_eq!(of(&[gathering(Some(now)), gathering(Some(now - wait / 2))]), wait / 2, "the soonest");
        let overdue = gathering(Some(now - wait));
        assert_eq!(of(std::slice::from_ref(&overdue)), Duration::from_millis(1));
        let mut refused = gathering(Some(now - wait));
        refused.wait_until = Some(now + Duration::from_secs(1));
        assert_eq!(of(&[refused]), POLL, "it is due once its refusal was a while ago");
        let mut sought = gathering(Some(now - wait));
        sought.seek_to = Some(0);
        assert_eq!(of(&[sought]), POLL, "the seek comes first");
        let mut stored = overdue;
        stored.close_batch(&"kafka:t".into(), 0);
        assert_eq!(of(&[stored, gathering(None)]), POLL_BESIDE_OUTCOMES);
    }

    #[test]
    fn the_ends_of_many_partitions_are_asked_for_together_and_seldom() {
        let (mut ends, start) = (Ends::default(), Instant::now());
        assert!(ends.due(start).is_empty(), "nothing has ended");
        ends.note(7);
        assert_eq!(ends.due(start), BTreeSet::from([7]), "the first one at once");
        [3, 900, 3].into_iter().for_each(|partition| ends.note(partition));
        assert!(ends.due(start + END_WAIT / 2).is_empty());
        assert_eq!(ends.due(start + END_WAIT), BTreeSet::from([3, 900]));
        assert!(ends.due(start + 3 * END_WAIT).is_empty(), "each is asked for once");
        [3, 900].into_iter().for_each(|partition| ends.note(partition));
        ends.forget(3);
        assert_eq!(ends.take(), BTreeSet::from([900]), "one that was sought has not ended there");
    }
}
