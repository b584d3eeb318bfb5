//! The source's thread: polls, gathers per partition, delivers dead letters, submits batches, receives
//! outcomes. It never stops polling for long, because faults arrive there, too: when the queue to the
//! log is full it waits a moment, then pauses every partition and polls on. `poll` takes messages, `start` finds out
//! what is read, and from where, `waits` holds partitions while a schema cannot be had, `reconnect` begins with a new
//! client.

mod poll;
mod reconnect;
mod start;
mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use poll::Ends;

use super::context::{SourceContext, other};
use super::fault::KafkaFault;
use super::partition::{Bounds, Partition};
use super::status::Shared;
use super::{DataLossPolicy, KafkaSourceOptions};
use crate::event::{Receipt, Submission, SubmitError};
use crate::ingest::SourceWiring;
use crate::ingest::handover::{Outcome, reply_into};
use crate::ingest::mapping::MessageReader;
use crate::ingest::rejection::IngestStats;

/// A wait for the log shorter than this is waited out; a longer one pauses the partitions, which costs
/// fetching their read-ahead again.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often offsets are committed to Kafka, for outside tools.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
const SEEK_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the high watermarks are fetched while nothing else is.
const WATERMARK_INTERVAL: Duration = Duration::from_secs(5);

/// Names the batch of an outcome: the partition and its epoch.
type Tag = (i32, u64);

pub(super) struct Worker {
    consumer: BaseConsumer<SourceContext>,
    shared: Arc<Shared>,
    stats: Arc<IngestStats>,
    wiring: SourceWiring,
    source: Arc<str>,
    options: KafkaSourceOptions,
    bounds: Bounds,
    reader: MessageReader,
    partitions: BTreeMap<i32, Partition>,
    epochs: u64,
    /// When to look for partitions that are not read yet.
    look_at: Option<Instant>,
    outcomes: (Sender<Outcome<Tag>>, Receiver<Outcome<Tag>>),
    blocked_since: Option<Instant>,
    holding: bool,
    /// When the high watermarks were fetched last.
    watermarks_fetched_at: Option<Instant>,
    uncommitted: BTreeMap<i32, i64>,
    committed_at: Instant,
    fault_shown: bool,
    ends: Ends,
    /// Closes the client before this one.
    closing: Vec<JoinHandle<()>>,
}

impl Worker {
    pub fn new(consumer: BaseConsumer<SourceContext>, wiring: SourceWiring, stats: Arc<IngestStats>) -> Self {
        let context = Arc::clone(consumer.context());
        let options = context.options.clone();
        Self {
            shared: Arc::clone(&context.shared),
            source: Arc::clone(&context.source),
            reader: options.reader(),
            bounds: Bounds {
                messages: options.batch_events.min(options.batch_max_events),
                wait: options.batch_wait,
                max_messages: options.batch_max_events,
                max_bytes: options.batch_max_bytes,
            },
            consumer,
            stats,
            wiring,
            options,
            partitions: BTreeMap::new(),
            epochs: 0,
            look_at: Some(Instant::now()),
            // One batch per partition is in flight, so the channel is bounded by the number of partitions.
            outcomes: crossbeam_channel::unbounded(),
            blocked_since: None,
            holding: false,
            watermarks_fetched_at: None,
            uncommitted: BTreeMap::new(),
            committed_at: Instant::now(),
            fault_shown: true,
            ends: Ends::default(),
            closing: Vec::new(),
        }
    }

    /// Reads until stopped. The consumer is closed when this returns.
    pub fn run(mut self) {
        let ended = self.read();
        let is_well = ended.is_ok();
        if let Err(fault) = ended {
            self.shared.fail(fault);
        }
        self.finish(is_well);
    }

    fn read(&mut self) -> Result<(), KafkaFault> {
        while !self.shared.stop.load(Relaxed) {
            self.stay_logged_in();
            self.reconnect_if_lost();
            self.take_up_partitions()?;
            self.take_outcomes()?;
            self.check_ranges()?;
            self.wait_for_schemas()?;
            self.seek_back()?;
            let blocked = self.hand_over();
            self.commit(false);
            if self.update_pause(blocked)? {
                self.poll_round()?;
            } else if let Ok(outcome) = self.outcomes.1.recv_timeout(Duration::from_millis(2)) {
                self.handle_outcome(outcome)?;
            }
        }
        Ok(())
    }

    /// Gives the client a new token when there is one.
    fn stay_logged_in(&self) {
        let session = &self.consumer.context().session;
        if session.is_by_token() {
            self.shared.set_logged_out(session.renew(&self.consumer));
            self.stats.count_token_failures(session.take_failures());
        }
    }

    fn named(&self, code: RDKafkaErrorCode, text: &str) -> KafkaFault {
        let options = &self.options;
        KafkaFault::from_code(code, text, &options.topic, &options.group)
    }

    fn take_outcomes(&mut self) -> Result<(), KafkaFault> {
        while let Ok(outcome) = self.outcomes.1.try_recv() {
            self.handle_outcome(outcome)?;
        }
        Ok(())
    }

    fn handle_outcome(&mut self, outcome: Outcome<Tag>) -> Result<(), KafkaFault> {
        let (id, epoch) = outcome.tag;
        if let Ok(receipt) = &outcome.result {
            self.stats.count_stored(receipt);
        }
        let Some(partition) = self.partitions.get_mut(&id).filter(|p| p.epoch == epoch) else {
            return Ok(());
        };
        match outcome.result {
            Ok(Receipt { .. }) => {
                if let Some(next) = partition.stored() {
                    self.shared.set_next(id, next);
                    self.uncommitted.insert(id, next);
                }
                self.shared.set_refused(None);
            }
            Err(SubmitError::ShuttingDown | SubmitError::OutcomeUnknown) => {
                partition.refused(Instant::now() + self.options.retry_wait);
                self.shared.stop.store(true, Relaxed);
            }
            Err(SubmitError::Unstorable { events, detail }) => {
                self.stats.count_refused_batch();
                partition.refused_for_good(events, detail);
            }
            Err(refusal) => {
                self.stats.count_refused_batch();
                self.shared.set_refused(Some(refusal.to_string()));
                partition.refused(Instant::now() + self.options.retry_wait);
            }
        }
        Ok(())
    }

    /// Takes reading to where it has to go on: to the start of refused batches, and out of gaps.
    fn seek_back(&mut self) -> Result<(), KafkaFault> {
        let mut assigned_anew = false;
        for (id, partition) in &mut self.partitions {
            let Some(offset) = partition.seek_to else { continue };
            let topic = &self.options.topic;
            let sought = if partition.is_stuck {
                assigned_anew = true;
                self.consumer.context().assign_anew(&self.consumer, *id, offset)
            } else {
                self.consumer.seek(topic, *id, Offset::Offset(offset), SEEK_TIMEOUT)
            };
            match sought {
                Ok(()) => {
                    (partition.seek_to, partition.is_stuck) = (None, false);
                    self.ends.forget(*id);
                }
                Err(error) => tracing::debug!(partition = id, offset, %error, "seek failed; trying again"),
            }
        }
        if assigned_anew && self.holding {
            self.pause_all()?;
        }
        Ok(())
    }

    /// Submits every batch that is due; returns whether reading must wait for the log.
    fn hand_over(&mut self) -> bool {
        let mut blocked = false;
        for (id, partition) in &mut self.partitions {
            if partition.is_due(&self.bounds)
                && partition.deliver_letters(&self.wiring, &self.stats, &self.shared, self.options.retry_wait)
            {
                let mut batch = partition.close_batch(&self.source, *id);
                batch.gap_allowed = self.options.data_loss == DataLossPolicy::Earliest;
                let reply = reply_into(self.outcomes.0.clone(), (*id, partition.epoch));
                partition.ready = Some(Submission { batch, reply: Some(reply) });
            }
            if let Some(submission) = partition.ready.take() {
                match self.wiring.submissions.try_send(submission) {
                    Ok(()) => {}
                    Err(TrySendError::Full(submission)) => {
                        partition.ready = Some(submission);
                        blocked = true;
                    }
                    // The submission is dropped, and its outcome is that the daemon is stopping.
                    Err(TrySendError::Disconnected(_)) => {}
                }
            }
            blocked |= partition.is_full(&self.bounds);
        }
        blocked
    }

    /// Pauses or resumes as the log and the operator require; returns whether to poll now.
    fn update_pause(&mut self, blocked: bool) -> Result<bool, KafkaFault> {
        if !blocked {
            self.blocked_since = None;
        }
        let waited = if blocked {
            self.blocked_since.get_or_insert_with(Instant::now).elapsed()
        } else {
            Duration::ZERO
        };
        let full = waited >= PATIENCE;
        let hold = full || self.wiring.holds.has(&self.source);
        if hold != self.holding {
            if hold {
                self.pause_all()?;
                if full {
                    self.stats.count_pause();
                }
            } else {
                self.consumer.resume(&self.owned()).map_err(|e| other(&e))?;
            }
            self.holding = hold;
            self.shared.is_holding.store(hold, Relaxed);
        }
        if self.holding && self.watermarks_fetched_at.is_none_or(|at| at.elapsed() >= WATERMARK_INTERVAL) {
            self.consumer.context().fetch_high_watermarks(&self.consumer, self.partitions.keys());
            self.watermarks_fetched_at = Some(Instant::now());
        }
        self.shared.set_back_pressure(full);
        Ok(!blocked || hold)
    }

    fn pause_all(&self) -> Result<(), KafkaFault> {
        self.consumer.pause(&self.owned()).map_err(|e| other(&e))
    }

    fn owned(&self) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(self.partitions.len());
        for id in self.partitions.keys() {
            list.add_partition(&self.options.topic, *id);
        }
        list
    }

    /// Commits durable offsets to Kafka, where outside tools read the lag. Nothing here reads them.
    fn commit(&mut self, last: bool) {
        if self.uncommitted.is_empty() || !(last || self.committed_at.elapsed() >= COMMIT_INTERVAL) {
            return;
        }
        self.committed_at = Instant::now();
        if self.consumer.context().group_denied.load(Relaxed) {
            return self.uncommitted.clear();
        }
        let mut list = TopicPartitionList::with_capacity(self.uncommitted.len());
        for (id, next) in std::mem::take(&mut self.uncommitted) {
            // Only a negative offset could be refused.
            let _ = list.add_partition_offset(&self.options.topic, id, Offset::Offset(next));
        }
        let mode = if last { CommitMode::Sync } else { CommitMode::Async };
        if let Err(error) = self.consumer.commit(&list, mode) {
            tracing::debug!(%error, "offsets were not committed to Kafka");
        }
    }

    /// Awaits the outcomes of the batches in flight, accounts for offsets without messages at the end of partitions,
    /// commits, and closes the consumer.
    fn finish(mut self, is_well: bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        for partition in self.partitions.values_mut() {
            if partition.ready.take().is_some() {
                partition.in_flight = None;
            }
        }
        self.await_outcomes(deadline);
        if is_well {
            let ended = self.ends.take();
            self.take_ends(&ended);
            for (id, partition) in &mut self.partitions {
                if partition.is_at_unstored_end() {
                    let batch = partition.close_batch(&self.source, *id);
                    let reply = reply_into(self.outcomes.0.clone(), (*id, partition.epoch));
                    // One that is not taken is dropped, and its outcome is a refusal.
                    let submission = Submission { batch, reply: Some(reply) };
                    let _ = self.wiring.submissions.send_deadline(submission, deadline);
                }
            }
            self.await_outcomes(deadline);
        }
        let in_flight = self.partitions.values().any(|partition| partition.in_flight.is_some());
        self.shared.left_in_flight.store(in_flight, Relaxed);
        self.commit(true);
        self.shared.set_stopped();
    }

    fn await_outcomes(&mut self, deadline: Instant) {
        while self.partitions.values().any(|p| p.in_flight.is_some()) {
            let Ok(outcome) = self.outcomes.1.recv_deadline(deadline) else { break };
            if self.handle_outcome(outcome).is_err() {
                break;
            }
        }
    }
}
