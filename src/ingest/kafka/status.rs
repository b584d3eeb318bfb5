//! How a Kafka source stands, as others may see it: written by the source's thread and by librdkafka's
//! callbacks, read by anyone.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use parking_lot::Mutex;

use super::fault::KafkaFault;

/// The state of a Kafka source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KafkaState {
    /// It is not known yet where to read.
    Connecting,
    /// Reading, or waiting for messages.
    Running,
    /// Paused by an operator.
    Paused,
    /// Something is wrong; the source keeps trying and recovers on its own.
    Degraded {
        /// What is wrong and what to do.
        reason: String,
        /// One fixed word for it.
        word: &'static str,
    },
    /// The source has ended and will not recover on its own.
    Failed {
        /// What is wrong and what to do.
        reason: String,
        /// One fixed word for it.
        word: &'static str,
    },
    /// The source was stopped.
    Stopped,
}

/// How one partition stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionStatus {
    /// The next offset that is not durable here.
    pub next_offset: Option<i64>,
    /// One past the newest offset of the broker, as of the last second.
    pub high_watermark: Option<i64>,
    /// Messages that are at the broker and not durable here.
    pub lag: Option<i64>,
}

/// How a Kafka source stands at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaStatus {
    /// The state.
    pub state: KafkaState,
    /// Whether reading waits because the queue to the log is full.
    pub back_pressure: bool,
    /// The partitions that are read.
    pub partitions: BTreeMap<i32, PartitionStatus>,
}

#[derive(Default)]
struct Inner {
    assigned: bool,
    stopped: bool,
    failed: Option<KafkaFault>,
    fault: Option<(KafkaFault, Instant)>,
    /// Why there is no token to log in with.
    logged_out: Option<KafkaFault>,
    /// The cause of the last connection failure, until all brokers are down and it becomes the fault.
    cause: Option<KafkaFault>,
    refused: Option<String>,
    /// Why the last dead letters could be delivered nowhere.
    undelivered: Option<String>,
    /// Partitions of which it is not known where reading can go on: why not, in a sentence and in one word.
    unknown_ranges: BTreeMap<i32, (String, &'static str)>,
    /// Partitions whose next message names a schema that cannot be had: why not.
    unknown_schemas: BTreeMap<i32, String>,
    back_pressure: bool,
    partitions: BTreeMap<i32, PartitionStatus>,
}

/// The shared state of a source.
#[derive(Default)]
pub(super) struct Shared {
    pub stop: AtomicBool,
    /// Whether nothing is fetched now: librdkafka's statistics know nothing of what is produced meanwhile.
    pub is_holding: AtomicBool,
    /// Whether it ended with a batch on its way to the log.
    pub left_in_flight: AtomicBool,
    inner: Mutex<Inner>,
}

impl Shared {
    pub fn status(&self, is_held: bool) -> KafkaStatus {
        let inner = self.inner.lock();
        KafkaStatus {
            state: state(&inner, is_held),
            back_pressure: inner.back_pressure,
            partitions: inner.partitions.clone(),
        }
    }

    pub fn set_assigned(&self, partitions: impl Iterator<Item = (i32, i64)>) {
        let mut inner = self.inner.lock();
        inner.assigned = true;
        let old = std::mem::take(&mut inner.partitions);
        inner.partitions = partitions
            .map(|(partition, next_offset)| {
                let high_watermark = old.get(&partition).and_then(|p| p.high_watermark);
                let next_offset = Some(next_offset);
                (partition, with_lag(PartitionStatus { next_offset, high_watermark, lag: None }))
            })
            .collect();
        if !inner.partitions.is_empty() {
            inner.fault = None;
        }
    }

    /// Where to read is to be found out anew.
    pub fn set_unassigned(&self) {
        let mut inner = self.inner.lock();
        inner.assigned = false;
        inner.partitions.clear();
        inner.unknown_schemas.clear();
    }

    pub fn set_next(&self, partition: i32, next: i64) {
        if let Some(status) = self.inner.lock().partitions.get_mut(&partition) {
            *status = with_lag(PartitionStatus { next_offset: Some(next), ..*status });
        }
    }

    pub fn set_high(&self, partition: i32, high: i64) {
        if let Some(status) = self.inner.lock().partitions.get_mut(&partition) {
            *status = with_lag(PartitionStatus { high_watermark: Some(high), ..*status });
        }
    }

    pub fn set_back_pressure(&self, back_pressure: bool) {
        self.inner.lock().back_pressure = back_pressure;
    }

    /// Notes why there is no token to log in with, or that there is one. Who fetches tokens logs it.
    pub fn set_logged_out(&self, fault: Option<KafkaFault>) {
        self.inner.lock().logged_out = fault;
    }

    pub fn set_refused(&self, refused: Option<String>) {
        self.inner.lock().refused = refused;
    }

    /// Notes whether dead letters could be delivered.
    pub fn set_undelivered(&self, undelivered: Option<String>) {
        let mut inner = self.inner.lock();
        match (&inner.undelivered, &undelivered) {
            (None, Some(reason)) => tracing::warn!("the Kafka source waits: {reason}"),
            (Some(_), None) => {
                tracing::info!("dead letters can be delivered again; the Kafka source goes on")
            }
            _ => {}
        }
        inner.undelivered = undelivered;
    }

    /// The broker did not report which offsets a partition has, and reading of it waits for that.
    pub fn range_unknown(&self, partition: i32, detail: &str) {
        let reason = format!(
            "reading of partition {partition} waits until the broker reports its offsets ({detail}); check the \
             broker's log"
        );
        self.wait_for_range(partition, reason, "range_unknown");
    }

    /// Whether a partition still is what was read cannot be found out because of `fault`, and reading of it waits.
    pub fn range_unsure(&self, partition: i32, fault: &KafkaFault) {
        self.wait_for_range(
            partition,
            format!("reading of partition {partition} waits: {fault}"),
            fault.word(),
        );
    }

    fn wait_for_range(&self, partition: i32, reason: String, word: &'static str) {
        let known = self.inner.lock().unknown_ranges.insert(partition, (reason.clone(), word));
        if known.is_none_or(|(_, old)| old != word) {
            tracing::warn!(partition, fault = word, "{reason}");
        }
    }

    /// The broker has reported which offsets a partition has: whatever was wrong is over.
    pub fn range_known(&self, partition: i32) {
        let mut inner = self.inner.lock();
        inner.unknown_ranges.remove(&partition);
        (inner.fault, inner.cause) = (None, None);
    }

    /// A schema cannot be had, and reading of a partition waits for it.
    pub fn schema_unknown(&self, partition: i32, detail: &str) {
        let reason = format!("reading of partition {partition} waits for a schema: {detail}");
        if self.inner.lock().unknown_schemas.insert(partition, reason.clone()).is_none() {
            tracing::warn!(partition, fault = "registry", "{reason}");
        }
    }

    /// The schemas of a partition's messages are known again.
    pub fn schema_known(&self, partition: i32) {
        if self.inner.lock().unknown_schemas.remove(&partition).is_some() {
            tracing::info!(partition, "the schema is known; the partition is read on");
        }
    }

    /// Notes a fault; connection failures count once every broker is down.
    pub fn set_fault(&self, fault: KafkaFault) {
        let mut inner = self.inner.lock();
        let is_new = inner.fault.as_ref().is_none_or(|(old, _)| old.word() != fault.word());
        if is_new {
            tracing::warn!(fault = fault.word(), "{fault}");
        }
        inner.fault = Some((fault, Instant::now()));
    }

    pub fn set_cause(&self, cause: KafkaFault) {
        self.inner.lock().cause = Some(cause);
    }

    /// Every broker is down: the last cause is the fault.
    pub fn all_brokers_down(&self, text: &str) {
        let cause = self.inner.lock().cause.clone();
        self.set_fault(cause.unwrap_or_else(|| KafkaFault::Unreachable {
            address: "the brokers".into(),
            detail: text.to_owned(),
        }));
    }

    /// A broker has been up for `age`: an older connection fault is over.
    pub fn broker_up(&self, age: std::time::Duration) {
        let mut inner = self.inner.lock();
        if inner.fault.as_ref().is_some_and(|(f, since)| f.is_about_connection() && age < since.elapsed()) {
            tracing::info!("the connection to Kafka is back");
            inner.fault = None;
            inner.cause = None;
        }
    }

    /// Whether nothing is wrong that a message would disprove.
    pub fn is_well(&self) -> bool {
        self.inner.lock().fault.is_none()
    }

    /// A message arrived: whatever was wrong is over.
    pub fn message_arrived(&self) {
        let mut inner = self.inner.lock();
        inner.fault = None;
        inner.cause = None;
    }

    pub fn fail(&self, fault: KafkaFault) {
        tracing::error!(fault = fault.word(), "the Kafka source has ended: {fault}");
        self.inner.lock().failed = Some(fault);
    }

    pub fn set_stopped(&self) {
        let mut inner = self.inner.lock();
        inner.stopped = true;
        inner.partitions.clear();
    }
}

fn with_lag(status: PartitionStatus) -> PartitionStatus {
    let lag = status.high_watermark.zip(status.next_offset).map(|(high, next)| (high - next).max(0));
    PartitionStatus { lag, ..status }
}

fn state(inner: &Inner, is_held: bool) -> KafkaState {
    if let Some(fault) = &inner.failed {
        KafkaState::Failed { reason: fault.to_string(), word: fault.word() }
    } else if inner.stopped {
        KafkaState::Stopped
    } else if let Some(fault) = &inner.logged_out {
        KafkaState::Degraded { reason: fault.to_string(), word: fault.word() }
    } else if let Some((fault, _)) = &inner.fault {
        KafkaState::Degraded { reason: fault.to_string(), word: fault.word() }
    } else if let Some(reason) = &inner.refused {
        KafkaState::Degraded { reason: reason.clone(), word: "log_refused" }
    } else if let Some(reason) = &inner.undelivered {
        KafkaState::Degraded { reason: reason.clone(), word: "dead_letters" }
    } else if let Some((reason, word)) = inner.unknown_ranges.values().next() {
        KafkaState::Degraded { reason: reason.clone(), word }
    } else if let Some(reason) = inner.unknown_schemas.values().next() {
        KafkaState::Degraded { reason: reason.clone(), word: "registry" }
    } else if is_held {
        KafkaState::Paused
    } else if inner.assigned {
        KafkaState::Running
    } else {
        KafkaState::Connecting
    }
}
