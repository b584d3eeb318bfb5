//! Which partitions are read, and from where: found out when the source starts, when the topic gets more partitions,
//! and when what the broker has may have changed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::super::context::{NoStart, Start, other};
use super::super::fault::KafkaFault;
use super::super::identity::{Found, compare, is_compacted};
use super::super::origin::Origins;
use super::super::partition::Partition;
use super::Worker;
use crate::event::SourceMark;
use crate::ingest::dead_letter::unix_ms;

/// Timeout for the topic's partitions.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for the ranges of all partitions, and again for the messages to compare.
const RANGES_TIMEOUT: Duration = Duration::from_secs(5);

type Starts = BTreeMap<i32, Result<Start, NoStart>>;

impl Worker {
    /// Begins to read the partitions that are not read yet. Those whose range is not known are tried again.
    pub(super) fn take_up_partitions(&mut self) -> Result<(), KafkaFault> {
        let now = Instant::now();
        if self.consumer.context().partitions_seen.load(Relaxed) > self.partitions.len() {
            self.look_at.get_or_insert(now + self.options.retry_wait);
        }
        if self.look_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        self.look_at = Some(now + METADATA_TIMEOUT + self.options.retry_wait);
        let Some(ids) = self.partition_ids() else { return Ok(()) };
        let new: Vec<i32> = ids.into_iter().filter(|id| !self.partitions.contains_key(id)).collect();
        let (wanted, before) = (new.len(), self.partitions.len());
        for (id, start) in self.starts_of(&new) {
            match start {
                Ok(start) => {
                    self.consumer.context().assign(&self.consumer, id, start.next).map_err(|e| other(&e))?;
                    self.take_up(id, &start);
                    self.shared.range_known(id);
                }
                Err(NoStart::Fault(fault)) => return Err(fault),
                Err(NoStart::NoResponse(error)) => self.shared.range_unknown(id, &error.to_string()),
                Err(NoStart::Unknown(fault)) => self.shared.range_unsure(id, &fault),
            }
        }
        if self.partitions.len() == before + wanted {
            self.look_at = None;
        }
        if self.partitions.len() > before {
            self.shared.set_assigned(self.partitions.iter().map(|(id, p)| (*id, p.stored_end())));
            // What is taken up while we hold still must hold still too.
            if self.holding {
                self.pause_all()?;
            }
        }
        Ok(())
    }

    fn take_up(&mut self, id: i32, start: &Start) {
        self.epochs += 1;
        let positions = &self.wiring.positions;
        let origins = Origins::new(positions.origin_unix_ms(&self.source, id), start.high, unix_ms());
        let mark = positions.mark(&self.source, id);
        let cursor = self.wiring.cursor(&self.source, id, true);
        self.shared.set_high(id, start.high);
        self.partitions.insert(id, Partition::new(self.epochs, start, cursor, mark, origins));
        tracing::info!(source = %self.source, partition = id, next = start.next, "partition is read");
    }

    /// The topic's partitions, if the broker responds. A topic that cannot be read is a fault that may end.
    fn partition_ids(&self) -> Option<Vec<i32>> {
        let topic = self.options.topic.as_str();
        let metadata = match self.consumer.fetch_metadata(Some(topic), METADATA_TIMEOUT) {
            Ok(metadata) => metadata,
            // The error callback has named the cause, or is about to.
            Err(error) => {
                tracing::debug!(%error, "the topic's partitions are not known");
                return None;
            }
        };
        let found = metadata.topics().iter().find(|found| found.name() == topic)?;
        match found.error().map(RDKafkaErrorCode::from) {
            None => Some(found.partitions().iter().map(|partition| partition.id()).collect()),
            // It is being created.
            Some(RDKafkaErrorCode::LeaderNotAvailable) => None,
            Some(code) => {
                self.shared.set_fault(self.named(code, "metadata"));
                None
            }
        }
    }

    /// Finds out where reading goes on in partitions of which the broker may have something else than before.
    /// librdkafka reports an offset out of range once, does not name the partition, and fetches no more of it until it
    /// is sought; so a check stays due until the broker has responded and nothing is on its way to the log.
    pub(super) fn check_ranges(&mut self) -> Result<(), KafkaFault> {
        let now = Instant::now();
        let is_due = |p: &Partition| p.range_check_at.is_some_and(|at| at <= now) && !p.is_on_its_way();
        let due: Vec<i32> = self.partitions.iter().filter(|(_, p)| is_due(p)).map(|(id, _)| *id).collect();
        for (id, start) in self.starts_of(&due) {
            let Some(partition) = self.partitions.get_mut(&id) else { continue };
            match start {
                Ok(start) => {
                    partition.start_again(start.next);
                    self.shared.range_known(id);
                }
                Err(NoStart::Fault(fault)) => return Err(fault),
                Err(NoStart::NoResponse(error)) => {
                    partition.range_check_at = Some(Instant::now() + self.options.retry_wait);
                    self.shared.range_unknown(id, &error.to_string());
                }
                Err(NoStart::Unknown(fault)) => {
                    partition.range_check_at = Some(Instant::now() + self.options.retry_wait);
                    self.shared.range_unsure(id, &fault);
                }
            }
        }
        Ok(())
    }

    /// Where reading of these partitions starts, within a bounded time for all of them.
    fn starts_of(&self, ids: &[i32]) -> Starts {
        let deadline = Instant::now() + RANGES_TIMEOUT;
        let context = self.consumer.context();
        let mut starts: Starts = BTreeMap::new();
        for &id in ids {
            let left = deadline.saturating_duration_since(Instant::now());
            let start = match left.is_zero() || self.shared.stop.load(Relaxed) {
                true => Err(NoStart::NoResponse(KafkaError::Canceled)),
                false => context.start_of(&self.consumer, id, left),
            };
            starts.insert(id, start);
        }
        let mark_in = |id: i32, start: &Result<Start, NoStart>| -> Option<SourceMark> {
            let low = start.as_ref().ok()?.low;
            self.wiring.positions.mark(&self.source, id).filter(|mark| mark.offset >= low)
        };
        let marks: BTreeMap<i32, SourceMark> =
            starts.iter().filter_map(|(&id, start)| Some((id, mark_in(id, start)?))).collect();
        if !marks.is_empty() {
            self.compare_marks(&marks, &mut starts);
        }
        starts
    }

    /// Takes the start from every partition that does not have the message that was read last.
    fn compare_marks(&self, marks: &BTreeMap<i32, SourceMark>, starts: &mut Starts) {
        let found = match compare(&self.options, marks, Instant::now() + RANGES_TIMEOUT) {
            Ok(found) => found,
            Err(fault) => {
                tracing::debug!(%fault, "messages cannot be compared");
                BTreeMap::new()
            }
        };
        let mut compacted = None;
        for (&partition, mark) in marks {
            let (topic, offset) = (self.options.topic.clone(), mark.offset);
            let is_gone = match found.get(&partition) {
                Some(Found::Same) => continue,
                Some(Found::Other) => false,
                Some(Found::Nothing) => {
                    match compacted.get_or_insert_with(|| is_compacted(&self.options, RANGES_TIMEOUT)) {
                        Ok(false) => true,
                        Ok(true) => {
                            tracing::warn!(partition, offset, "the message that was read last is gone");
                            continue;
                        }
                        Err(fault) => {
                            starts.insert(partition, Err(NoStart::Unknown(fault.clone())));
                            continue;
                        }
                    }
                }
                None => {
                    starts.insert(partition, Err(NoStart::NoResponse(KafkaError::Canceled)));
                    continue;
                }
            };
            let fault = KafkaFault::TopicReplaced { topic, partition, offset, is_gone };
            starts.insert(partition, Err(fault.into()));
        }
    }
}
