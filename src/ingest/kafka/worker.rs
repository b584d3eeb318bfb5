//! The source's thread: polls, gathers per partition, delivers dead letters, hands batches over, hears
//! outcomes. It never stops polling for long, or the group would take it for dead: when the queue to the
//! log is full it waits a moment, then pauses every partition and polls on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use super::context::{Change, NoStart, SourceContext, other};
use super::fault::KafkaFault;
use super::partition::{Bounds, Partition};
use super::status::Shared;
use super::{DataLossPolicy, KafkaSourceOptions};
use crate::event::{Receipt, Submission, SubmitError};
use crate::ingest::SourceWiring;
use crate::ingest::decode::Decoder;
use crate::ingest::handover::{Outcome, reply_into};
use crate::ingest::rejection::IngestStats;

/// A wait for the log shorter than this is waited out; a longer one pauses the partitions, which costs
/// fetching their read-ahead again.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often offsets are committed to Kafka, for outside tools.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Messages between two looks at everything else.
const MESSAGES_PER_ROUND: usize = 512;
const SEEK_TIMEOUT: Duration = Duration::from_secs(2);
const RANGE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the broker is asked how much waits there while nothing is fetched.
const ASK_INTERVAL: Duration = Duration::from_secs(5);

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
    decoder: Decoder,
    partitions: BTreeMap<i32, Partition>,
    epochs: u64,
    outcomes: (Sender<Outcome<Tag>>, Receiver<Outcome<Tag>>),
    blocked_since: Option<Instant>,
    holding: bool,
    /// When the broker was asked last how much waits there.
    asked_at: Option<Instant>,
    uncommitted: BTreeMap<i32, i64>,
    committed_at: Instant,
    fault_shown: bool,
}

impl Worker {
    pub fn new(consumer: BaseConsumer<SourceContext>, wiring: SourceWiring, stats: Arc<IngestStats>) -> Self {
        let context = Arc::clone(consumer.context());
        let options = context.options.clone();
        Self {
            shared: Arc::clone(&context.shared),
            source: Arc::clone(&context.source),
            decoder: Decoder::new(options.decode),
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
            // One batch per partition is in flight, so the channel is bounded by the number of partitions.
            outcomes: crossbeam_channel::unbounded(),
            blocked_since: None,
            holding: false,
            asked_at: None,
            uncommitted: BTreeMap::new(),
            committed_at: Instant::now(),
            fault_shown: true,
        }
    }

    /// Reads until told to stop. The consumer is closed when this returns.
    pub fn run(mut self) {
        match self.read() {
            Ok(()) => {}
            Err(fault) => self.shared.fail(fault),
        }
        self.finish();
    }

    fn read(&mut self) -> Result<(), KafkaFault> {
        while !self.shared.stop.load(Relaxed) {
            self.take_changes()?;
            self.take_outcomes()?;
            self.check_ranges()?;
            self.seek_back()?;
            let blocked = self.hand_over();
            self.commit(false);
            if self.hold_or_go_on(blocked)? {
                self.poll_round()?;
            } else if let Ok(outcome) = self.outcomes.1.recv_timeout(Duration::from_millis(2)) {
                self.hear(outcome)?;
            }
        }
        Ok(())
    }

    fn poll_round(&mut self) -> Result<(), KafkaFault> {
        // An outcome ends a wait that polling does not notice, so polls are short while one is due.
        let busy = self.partitions.values().any(|p| p.in_flight.is_some() || p.ready.is_some());
        let mut timeout = Duration::from_millis(if busy { 2 } else { 20 });
        for _ in 0..MESSAGES_PER_ROUND {
            // The message borrows the consumer; the handle keeps both borrows apart.
            match self.consumer.poll(timeout) {
                None => break,
                Some(Ok(message)) => {
                    if self.fault_shown {
                        self.shared.message_arrived();
                    }
                    // A message of a partition that was just given back belongs to its next owner.
                    if let Some(partition) = self.partitions.get_mut(&message.partition()) {
                        partition.take(&message, &self.source, &self.decoder, &self.stats);
                        if partition.is_full(&self.bounds) {
                            break;
                        }
                    }
                }
                Some(Err(error)) => {
                    self.poll_error(&error)?;
                    break;
                }
            }
            timeout = Duration::ZERO;
        }
        self.fault_shown = !self.shared.is_well();
        Ok(())
    }

    fn poll_error(&mut self, error: &KafkaError) -> Result<(), KafkaFault> {
        match error {
            KafkaError::MessageConsumptionFatal(code) => Err(self.named(*code, &error.to_string())),
            KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset) => {
                let at = Instant::now();
                for partition in self.partitions.values_mut() {
                    // A check right before did not help, so the next one waits.
                    let rest = partition.range_checked.map(|checked| checked + self.options.retry_wait);
                    let due = rest.map_or(at, |rest| rest.max(at));
                    partition.range_check_at.get_or_insert(due);
                }
                Ok(())
            }
            // Named by the error callback already, or about to be.
            _ => Ok(()),
        }
    }

    fn named(&self, code: RDKafkaErrorCode, text: &str) -> KafkaFault {
        let options = &self.options;
        KafkaFault::from_code(code, text, &options.topic, &options.group, options.instance.as_deref())
    }

    /// Finds out where reading goes on in partitions whose position may be out of the broker's range.
    /// librdkafka names that once, does not say which partition it was, and fetches no more of it until it is
    /// sought; so a check stays due until the broker has answered and nothing is on its way to the log.
    fn check_ranges(&mut self) -> Result<(), KafkaFault> {
        let now = Instant::now();
        for (id, partition) in &mut self.partitions {
            if partition.range_check_at.is_none_or(|at| at > now) || partition.is_on_its_way() {
                continue;
            }
            match self.consumer.context().start_of(&self.consumer, *id, RANGE_TIMEOUT) {
                Ok(start) => {
                    partition.range_check_at = None;
                    partition.start_again(start);
                    self.shared.range_known(*id);
                }
                Err(NoStart::Fault(fault)) => return Err(fault),
                Err(NoStart::NoResponse(error)) => {
                    partition.range_check_at = Some(Instant::now() + self.options.retry_wait);
                    self.shared.range_unknown(*id, error.to_string());
                }
            }
        }
        Ok(())
    }

    fn take_changes(&mut self) -> Result<(), KafkaFault> {
        let changes = std::mem::take(&mut *self.consumer.context().changes.lock());
        if changes.is_empty() {
            return Ok(());
        }
        for change in changes {
            match change {
                Change::Assigned { partition, next } => {
                    self.epochs += 1;
                    let cursor = self.wiring.cursor(&self.source, partition, true);
                    self.partitions.insert(partition, Partition::new(self.epochs, next, cursor));
                    tracing::info!(source = %self.source, partition, next, "partition assigned");
                }
                Change::Revoked { partition } => {
                    self.partitions.remove(&partition);
                    self.uncommitted.remove(&partition);
                    tracing::info!(source = %self.source, partition, "partition revoked");
                }
                Change::Fault(fault) => return Err(fault),
            }
        }
        self.shared.set_assigned(self.partitions.iter().map(|(id, p)| (*id, p.next())));
        // What was assigned while we hold still must hold still too.
        if self.holding {
            self.pause_all()?;
        }
        Ok(())
    }

    fn take_outcomes(&mut self) -> Result<(), KafkaFault> {
        while let Ok(outcome) = self.outcomes.1.try_recv() {
            self.hear(outcome)?;
        }
        Ok(())
    }

    fn hear(&mut self, outcome: Outcome<Tag>) -> Result<(), KafkaFault> {
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
            Err(SubmitError::ShuttingDown) => {
                partition.refused(Instant::now() + self.options.retry_wait);
                self.shared.stop.store(true, Relaxed);
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
                self.consumer.seek(topic, *id, offset, SEEK_TIMEOUT)
            };
            match sought {
                Ok(()) => (partition.seek_to, partition.is_stuck) = (None, false),
                Err(error) => tracing::debug!(partition = id, ?offset, %error, "seek failed; trying again"),
            }
        }
        if assigned_anew && self.holding {
            self.pause_all()?;
        }
        Ok(())
    }

    /// Hands over every batch that is due; says whether reading must wait for the log.
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
                    // The submission is dropped, and its outcome says that the daemon is stopping.
                    Err(TrySendError::Disconnected(_)) => {}
                }
            }
            blocked |= partition.is_full(&self.bounds);
        }
        blocked
    }

    /// Pauses or resumes as the log and the operator ask; says whether to poll now.
    fn hold_or_go_on(&mut self, blocked: bool) -> Result<bool, KafkaFault> {
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
        if self.holding && self.asked_at.is_none_or(|asked| asked.elapsed() >= ASK_INTERVAL) {
            self.consumer.context().ask_how_much_waits(&self.consumer, self.partitions.keys());
            self.asked_at = Some(Instant::now());
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

    /// Commits durable offsets to Kafka, where outside tools look for the lag. Nothing here reads them.
    fn commit(&mut self, last: bool) {
        if self.uncommitted.is_empty() || !(last || self.committed_at.elapsed() >= COMMIT_INTERVAL) {
            return;
        }
        self.committed_at = Instant::now();
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

    /// Hears of the batches in flight, commits, and leaves the group.
    fn finish(mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        for partition in self.partitions.values_mut() {
            if partition.ready.take().is_some() {
                partition.in_flight = None;
            }
        }
        while self.partitions.values().any(|p| p.in_flight.is_some()) {
            let Ok(outcome) = self.outcomes.1.recv_deadline(deadline) else { break };
            if self.hear(outcome).is_err() {
                break;
            }
        }
        self.commit(true);
        self.shared.set_stopped();
        self.consumer.unsubscribe();
    }
}
