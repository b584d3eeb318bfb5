//! What the source's thread and librdkafka's callbacks share. Callbacks run inside `poll`, on the source's thread; they
//! leave notes for it. A start is checked against what the broker has: a position below its oldest message is data lost
//! by retention, one above its newest is a topic that was created again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::fault::{KafkaFault, is_about_another_topic};
use super::login::Session;
use super::options::{DataLossPolicy, KafkaSourceOptions};
use super::outage::Outage;
use super::preflight::config_fault;
use super::status::Shared;
use crate::event::PositionLookup;

/// Timeout for the high watermarks while reading is paused.
const WATERMARK_TIMEOUT: Duration = Duration::from_secs(1);

/// Where reading of a partition starts, and what the broker has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The next offset to read.
    pub next: i64,
    /// The oldest offset.
    pub low: i64,
    /// One past the newest offset.
    pub high: i64,
}

/// Why it is not known where reading of a partition starts.
pub(super) enum NoStart {
    /// The broker did not report which offsets it has.
    NoResponse(KafkaError),
    /// Whether the broker has what is needed cannot be found out, for this reason.
    Unknown(KafkaFault),
    /// The broker does not have what is needed.
    Fault(KafkaFault),
}

impl From<KafkaFault> for NoStart {
    fn from(fault: KafkaFault) -> Self {
        Self::Fault(fault)
    }
}

pub(super) struct SourceContext {
    pub options: KafkaSourceOptions,
    pub source: Arc<str>,
    pub positions: Arc<dyn PositionLookup>,
    pub shared: Arc<Shared>,
    /// Whether the cluster is the one whose offsets the log holds.
    pub cluster_known: AtomicBool,
    /// How many partitions the topic has, by the latest statistics.
    pub partitions_seen: AtomicUsize,
    /// Whether the topic went away or changed its id, so that its messages may be others.
    pub topic_changed: AtomicBool,
    /// Whether the group may not be used, so that a commit of offsets would wait for ever.
    pub group_denied: AtomicBool,
    /// How long no broker has been connected.
    pub outage: Outage,
    /// Keeps the client logged in.
    pub session: Session,
    /// Whether another client reads in the place of this one, so that it has nothing more to report.
    is_retired: AtomicBool,
}

impl SourceContext {
    /// A context in which nothing is known of the topic.
    pub fn new(
        options: KafkaSourceOptions,
        source: Arc<str>,
        positions: Arc<dyn PositionLookup>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            options,
            source,
            positions,
            shared,
            cluster_known: AtomicBool::new(false),
            partitions_seen: AtomicUsize::new(0),
            topic_changed: AtomicBool::new(false),
            group_denied: AtomicBool::new(false),
            outage: Outage::none(),
            session: Session::default(),
            is_retired: AtomicBool::new(false),
        }
    }

    /// A client that knows nothing yet.
    ///
    /// # Errors
    /// When an option or property is not valid.
    pub fn connect(mut self) -> Result<BaseConsumer<Self>, KafkaFault> {
        let config = self.options.source_config()?;
        self.session = Session::of(&self.options.client)?;
        config.create_with_context(self).map_err(|e| config_fault(&e))
    }

    /// Another client for the same topic, and from now on silence about this one.
    ///
    /// # Errors
    /// When an option or property is not valid any more, as with a file of certificates that is gone.
    pub fn connect_again(&self) -> Result<BaseConsumer<Self>, KafkaFault> {
        let (positions, shared) = (Arc::clone(&self.positions), Arc::clone(&self.shared));
        let client =
            Self::new(self.options.clone(), Arc::clone(&self.source), positions, shared).connect()?;
        self.is_retired.store(true, Relaxed);
        Ok(client)
    }

    /// Where reading of a partition starts: the log's position if the broker still has it, the oldest message where the
    /// log has none.
    pub fn start_of(
        &self,
        consumer: &BaseConsumer<Self>,
        partition: i32,
        wait: Duration,
    ) -> Result<Start, NoStart> {
        let deadline = Instant::now() + wait;
        self.know_cluster(consumer, wait / 2)?;
        let topic = self.options.topic.clone();
        let left = deadline.saturating_duration_since(Instant::now());
        let (low, high) = consumer.fetch_watermarks(&topic, partition, left).map_err(NoStart::NoResponse)?;
        self.shared.set_high(partition, high);
        let stored = self.positions.position(&self.source, partition).unwrap_or(low);
        if stored > high {
            return Err(KafkaFault::TopicRecreated { topic, partition, stored, high }.into());
        }
        if stored >= low {
            return Ok(Start { next: stored, low, high });
        }
        match self.options.data_loss {
            DataLossPolicy::Fail => Err(KafkaFault::DataLost { topic, partition, stored, low }.into()),
            DataLossPolicy::Earliest => {
                tracing::warn!(
                    partition,
                    stored,
                    low,
                    "offsets are gone by retention; going on without them"
                );
                Ok(Start { next: low, low, high })
            }
        }
    }

    /// Fetches the high watermarks, which nothing else updates while reading is paused, within a bounded time.
    pub fn fetch_high_watermarks<'a>(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: impl Iterator<Item = &'a i32>,
    ) {
        let deadline = Instant::now() + WATERMARK_TIMEOUT;
        for &partition in partitions {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            match consumer.fetch_watermarks(&self.options.topic, partition, left) {
                Ok((_, high)) => self.shared.set_high(partition, high),
                Err(error) => tracing::debug!(partition, %error, "how much waits is not known"),
            }
        }
    }

    /// Compares the cluster with the one that was read before. One without an id is accepted.
    fn know_cluster(&self, consumer: &BaseConsumer<Self>, wait: Duration) -> Result<(), NoStart> {
        if self.cluster_known.load(Relaxed) {
            return Ok(());
        }
        let started = Instant::now();
        let Some(found) = consumer.client().fetch_cluster_id(wait) else {
            if started.elapsed() >= wait {
                return Err(NoStart::NoResponse(KafkaError::Canceled));
            }
            tracing::debug!("the brokers do not report their cluster id");
            return Ok(());
        };
        let topic = self.options.topic.clone();
        match (self.options.clusters.0)(&topic, &found) {
            Some(remembered) => Err(KafkaFault::OtherCluster { topic, remembered, found }.into()),
            None => {
                self.cluster_known.store(true, Relaxed);
                Ok(())
            }
        }
    }

    /// Starts reading of a partition at `offset`.
    pub fn assign(&self, consumer: &BaseConsumer<Self>, partition: i32, offset: i64) -> KafkaResult<()> {
        let mut start = TopicPartitionList::new();
        start.add_partition_offset(&self.options.topic, partition, Offset::Offset(offset))?;
        consumer.incremental_assign(&start)
    }

    /// Gives a partition that is read another start. Unlike a seek this also works where fetching has ended.
    pub fn assign_anew(&self, consumer: &BaseConsumer<Self>, partition: i32, offset: i64) -> KafkaResult<()> {
        let mut old = TopicPartitionList::new();
        old.add_partition(&self.options.topic, partition);
        consumer.incremental_unassign(&old)?;
        self.assign(consumer, partition, offset)
    }
}

/// A client error that has no name of its own.
pub(in crate::ingest) fn other(error: &KafkaError) -> KafkaFault {
    let code = error.rdkafka_error_code().map_or_else(|| "client".to_owned(), |c| format!("{c:?}"));
    KafkaFault::Other { code, detail: error.to_string() }
}

impl ClientContext for SourceContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        if is_about_another_topic(text, &self.options.topic) {
            self.topic_changed.store(true, Relaxed);
        }
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(target: "librdkafka", facility, "{text}");
            }
            // Faults are reported once, by name, through the error callback.
            _ => tracing::debug!(target: "librdkafka", facility, "{text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        tracing::debug!(target: "librdkafka", ?code, reason, "error event");
        if self.is_retired.load(Relaxed) {
            return;
        }
        let options = &self.options;
        let named = KafkaFault::from_code(code, reason, &options.topic, &options.group);
        match code {
            RDKafkaErrorCode::AllBrokersDown => self.shared.all_brokers_down(reason),
            // One of several brokers may be away without harm.
            RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::Resolve
            | RDKafkaErrorCode::OperationTimedOut => self.shared.set_cause(named),
            // Ranges and ends are the business of the source's thread; an end is no fault.
            RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::PartitionEOF => {}
            // Only committing needs the group, for outside tools; reading goes on.
            RDKafkaErrorCode::GroupAuthorizationFailed => self.group_denied.store(true, Relaxed),
            _ => {
                if named.is_about_connection() {
                    self.shared.set_cause(named.clone());
                }
                // When it is back it may be another one.
                if matches!(named, KafkaFault::TopicMissing { .. }) {
                    self.topic_changed.store(true, Relaxed);
                }
                self.shared.set_fault(named);
            }
        }
    }

    fn stats(&self, statistics: Statistics) {
        if self.is_retired.load(Relaxed) {
            return;
        }
        self.outage.note(statistics.ts, statistics.brokers.values().any(|b| b.state == "UP"));
        let up = statistics.brokers.values().filter(|b| b.nodeid >= 0 && b.state == "UP");
        if let Some(age) = up.map(|b| b.stateage).min() {
            self.shared.broker_up(Duration::from_micros(u64::try_from(age).unwrap_or(0)));
        }
        let Some(topic) = statistics.topics.get(&self.options.topic) else { return };
        // The one below 0 stands for messages without a partition.
        self.partitions_seen.store(topic.partitions.keys().filter(|id| **id >= 0).count(), Relaxed);
        if !self.shared.is_holding.load(Relaxed) {
            for (partition, numbers) in topic.partitions.iter().filter(|(_, n)| n.hi_offset >= 0) {
                self.shared.set_high(*partition, numbers.hi_offset);
            }
        }
    }
}

impl ConsumerContext for SourceContext {
    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        // Committed offsets only let outside tools see the lag.
        if let Err(error) = result {
            tracing::debug!(%error, "offsets were not committed to Kafka");
        }
    }

    fn main_queue_min_poll_interval(&self) -> rdkafka::util::Timeout {
        rdkafka::util::Timeout::After(Duration::from_millis(100))
    }
}
