//! librdkafka's callbacks. Those of a rebalance run inside `poll`, on the source's thread; they decide
//! where each newly assigned partition starts and leave a note for the thread. A start is checked against
//! what the broker has: a position below its oldest message is data lost by retention, one above its
//! newest is a topic that was created again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::fault::KafkaFault;
use super::options::{DataLossPolicy, KafkaSourceOptions};
use super::status::Shared;
use crate::event::PositionLookup;

/// The broker's answers about the ranges of all partitions must come within this time.
const WATERMARK_TIMEOUT: Duration = Duration::from_secs(5);
/// Those about how much waits, while nothing is fetched, within this.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// A change of ownership, for the source's thread.
pub(super) enum Change {
    /// Reading of a partition starts at `next`, or at its oldest message.
    Assigned { partition: i32, next: Option<i64> },
    /// A partition is no longer ours.
    Revoked { partition: i32 },
    /// A partition cannot be read.
    Fault(KafkaFault),
}

/// Why it is not known where reading of a partition starts.
pub(super) enum NoStart {
    /// The broker did not say which offsets it has.
    NoResponse(KafkaError),
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
    pub changes: Mutex<Vec<Change>>,
    /// Whether the cluster is the one whose offsets the log holds.
    pub cluster_known: AtomicBool,
}

impl SourceContext {
    /// Where reading of a partition starts: the log's position if the broker still has it. `None` where the
    /// log has none.
    pub fn start_of(
        &self,
        consumer: &BaseConsumer<Self>,
        partition: i32,
        wait: Duration,
    ) -> Result<Option<i64>, NoStart> {
        let deadline = Instant::now() + wait;
        self.know_cluster(consumer, wait / 2)?;
        let Some(stored) = self.positions.position(&self.source, partition) else { return Ok(None) };
        let topic = self.options.topic.clone();
        let left = deadline.saturating_duration_since(Instant::now());
        let (low, high) = consumer.fetch_watermarks(&topic, partition, left).map_err(NoStart::NoResponse)?;
        self.shared.set_high(partition, high);
        if stored > high {
            return Err(KafkaFault::TopicRecreated { topic, partition, stored, high }.into());
        }
        if stored >= low {
            return Ok(Some(stored));
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
                Ok(Some(low))
            }
        }
    }

    /// While nothing is fetched nobody tells how much waits at the broker, so it is asked for, within a bounded time.
    pub fn ask_how_much_waits<'a>(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: impl Iterator<Item = &'a i32>,
    ) {
        let deadline = Instant::now() + ASK_TIMEOUT;
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

    /// Holds the cluster against the one that was read before. One that has no name is believed.
    fn know_cluster(&self, consumer: &BaseConsumer<Self>, wait: Duration) -> Result<(), NoStart> {
        if self.cluster_known.load(Relaxed) {
            return Ok(());
        }
        let asked = Instant::now();
        let Some(found) = consumer.client().fetch_cluster_id(wait) else {
            if asked.elapsed() >= wait {
                return Err(NoStart::NoResponse(KafkaError::Canceled));
            }
            tracing::debug!("the brokers do not say of which cluster they are");
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

    /// Where reading of newly assigned partitions starts. All answers of the broker together must come
    /// within `wait`: the group waits for this. A partition that was not checked starts at the log's position,
    /// and if the broker does not have that, fetching it is an error that leads to another check.
    fn starts_of(
        &self,
        consumer: &BaseConsumer<Self>,
        assigned: &TopicPartitionList,
        wait: Duration,
    ) -> Vec<(String, i32, Offset, Change)> {
        let deadline = Instant::now() + wait;
        let start = |partition: i32| {
            let left = deadline.saturating_duration_since(Instant::now());
            let checked = match left.is_zero() {
                true => Err(NoStart::NoResponse(KafkaError::Canceled)),
                false => self.start_of(consumer, partition, left),
            };
            let next = match checked {
                Ok(next) => next,
                Err(NoStart::NoResponse(error)) => {
                    tracing::warn!(partition, %error, "the partition's range could not be asked for");
                    self.positions.position(&self.source, partition)
                }
                // The source ends before it would read from here.
                Err(NoStart::Fault(fault)) => return (Offset::End, Change::Fault(fault)),
            };
            (next.map_or(Offset::Beginning, Offset::Offset), Change::Assigned { partition, next })
        };
        let element = |e: TopicPartitionListElem<'_>| {
            let (offset, change) = start(e.partition());
            (e.topic().to_owned(), e.partition(), offset, change)
        };
        assigned.elements().into_iter().map(element).collect()
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, assigned: &TopicPartitionList) {
        let mut starts = TopicPartitionList::new();
        let mut changes = Vec::new();
        for (topic, partition, offset, change) in self.starts_of(consumer, assigned, WATERMARK_TIMEOUT) {
            changes.push(change);
            if let Err(error) = starts.add_partition_offset(&topic, partition, offset) {
                changes.push(Change::Fault(other(&error)));
            }
        }
        let result = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_assign(&starts),
            _ => consumer.assign(&starts),
        };
        if let Err(error) = result {
            changes.push(Change::Fault(other(&error)));
        }
        self.changes.lock().extend(changes);
    }

    /// Gives a partition that we keep another start. Unlike a seek this also works where fetching has ended.
    pub fn assign_anew(
        &self,
        consumer: &BaseConsumer<Self>,
        partition: i32,
        offset: Offset,
    ) -> KafkaResult<()> {
        let topic = &self.options.topic;
        let mut start = TopicPartitionList::new();
        start.add_partition_offset(topic, partition, offset)?;
        if matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative) {
            consumer.incremental_unassign(&start)?;
            return consumer.incremental_assign(&start);
        }
        // The others go on where they stand, or where they would start.
        let all = consumer.position()?;
        for mut element in all.elements_for_topic(topic) {
            let other = element.partition();
            if other == partition {
                element.set_offset(offset)?;
            } else if element.offset() == Offset::Invalid {
                let stored = self.positions.position(&self.source, other);
                element.set_offset(stored.map_or(Offset::Beginning, Offset::Offset))?;
            }
        }
        consumer.assign(&all)
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, revoked: &TopicPartitionList) {
        let notes = revoked.elements().into_iter().map(|e| Change::Revoked { partition: e.partition() });
        self.changes.lock().extend(notes);
        let result = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(revoked),
            _ => consumer.unassign(),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "partitions could not be given back");
        }
    }
}

/// A client error that has no name of its own.
pub(super) fn other(error: &KafkaError) -> KafkaFault {
    let code = error.rdkafka_error_code().map_or_else(|| "client".to_owned(), |c| format!("{c:?}"));
    KafkaFault::Other { code, detail: error.to_string() }
}

impl ClientContext for SourceContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
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
        let options = &self.options;
        let named =
            KafkaFault::from_code(code, reason, &options.topic, &options.group, options.instance.as_deref());
        match code {
            RDKafkaErrorCode::AllBrokersDown => self.shared.all_brokers_down(reason),
            // One of several brokers may be away without harm.
            RDKafkaErrorCode::BrokerTransportFailure
            | RDKafkaErrorCode::Resolve
            | RDKafkaErrorCode::OperationTimedOut => self.shared.set_cause(named),
            // Ranges are checked by the source's thread.
            RDKafkaErrorCode::AutoOffsetReset => {}
            _ => {
                if named.is_about_connection() {
                    self.shared.set_cause(named.clone());
                }
                self.shared.set_fault(named);
            }
        }
    }

    fn stats(&self, statistics: Statistics) {
        let up = statistics.brokers.values().filter(|b| b.nodeid >= 0 && b.state == "UP");
        if let Some(age) = up.map(|b| b.stateage).min() {
            self.shared.broker_up(Duration::from_micros(u64::try_from(age).unwrap_or(0)));
        }
        if self.shared.is_holding.load(Relaxed) {
            return;
        }
        if let Some(topic) = statistics.topics.get(&self.options.topic) {
            for (partition, numbers) in topic.partitions.iter().filter(|(_, n)| n.hi_offset >= 0) {
                self.shared.set_high(*partition, numbers.hi_offset);
            }
        }
    }
}

impl ConsumerContext for SourceContext {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, list: &mut TopicPartitionList) {
        match err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assign(consumer, list),
            _ => self.revoke(consumer, list),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    struct AtTen;

    impl PositionLookup for AtTen {
        fn position(&self, _: &str, _: i32) -> Option<i64> {
            Some(10)
        }
    }

    #[test]
    fn many_partitions_without_an_answer_are_waited_for_once() {
        let options = KafkaSourceOptions::new("127.0.0.1:1", "t", "g");
        let context = SourceContext {
            source: "kafka:t".into(),
            positions: Arc::new(AtTen),
            shared: Arc::default(),
            changes: Mutex::default(),
            cluster_known: AtomicBool::new(false),
            options: options.clone(),
        };
        let config = options.consumer_config().unwrap();
        let consumer: BaseConsumer<_> = config.create_with_context(context).unwrap();
        let mut assigned = TopicPartitionList::new();
        for partition in 0..20 {
            assigned.add_partition("t", partition);
        }
        let started = Instant::now();
        let starts = consumer.context().starts_of(&consumer, &assigned, Duration::from_millis(300));
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        assert_eq!(starts.len(), 20);
        assert!(starts.iter().all(|(_, _, offset, _)| *offset == Offset::Offset(10)));
    }
}
