//! librdkafka's callbacks. Those of a rebalance run inside `poll`, on the source's thread; they decide
//! where each newly assigned partition starts and leave a note for the thread. A start is checked against
//! what the broker has: a position below its oldest message is data lost by retention, one above its
//! newest is a topic that was created again.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::fault::KafkaFault;
use super::options::{DataLossPolicy, KafkaSourceOptions};
use super::status::Shared;
use crate::event::PositionLookup;

/// The broker's answer about a partition's range must come within this time, or the start is not checked.
const WATERMARK_TIMEOUT: Duration = Duration::from_secs(5);

/// A change of ownership, for the source's thread.
pub(super) enum Change {
    /// Reading of a partition starts at `next`, or at its oldest message.
    Assigned { partition: i32, next: Option<i64> },
    /// A partition is no longer ours.
    Revoked { partition: i32 },
    /// A partition cannot be read.
    Fault(KafkaFault),
}

pub(super) struct SourceContext {
    pub options: KafkaSourceOptions,
    pub source: Arc<str>,
    pub positions: Arc<dyn PositionLookup>,
    pub shared: Arc<Shared>,
    pub changes: Mutex<Vec<Change>>,
}

impl SourceContext {
    /// Where reading of a partition starts: the log's position if the broker still has it.
    pub fn start_of(&self, consumer: &BaseConsumer<Self>, partition: i32) -> Result<Option<i64>, KafkaFault> {
        let Some(stored) = self.positions.position(&self.source, partition) else { return Ok(None) };
        let topic = self.options.topic.clone();
        let (low, high) = match consumer.fetch_watermarks(&topic, partition, WATERMARK_TIMEOUT) {
            Ok(range) => range,
            // The broker is away for a moment. A position out of range is an error of its own later on.
            Err(error) => {
                tracing::warn!(partition, %error, "the partition's range could not be asked for");
                return Ok(Some(stored));
            }
        };
        self.shared.set_high(partition, high);
        if stored > high {
            return Err(KafkaFault::TopicRecreated { topic, partition, stored, high });
        }
        if stored >= low {
            return Ok(Some(stored));
        }
        match self.options.data_loss {
            DataLossPolicy::Fail => Err(KafkaFault::DataLost { topic, partition, stored, low }),
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

    fn assign(&self, consumer: &BaseConsumer<Self>, assigned: &TopicPartitionList) {
        let mut starts = TopicPartitionList::new();
        let mut changes = Vec::new();
        for element in assigned.elements() {
            let partition = element.partition();
            let (offset, change) = match self.start_of(consumer, partition) {
                Ok(None) => (Offset::Beginning, Change::Assigned { partition, next: None }),
                Ok(Some(next)) => (Offset::Offset(next), Change::Assigned { partition, next: Some(next) }),
                // The source ends before it would read from here.
                Err(fault) => (Offset::End, Change::Fault(fault)),
            };
            changes.push(change);
            if let Err(error) = starts.add_partition_offset(element.topic(), partition, offset) {
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
