//! To a Kafka topic: an idempotent producer, keyed by source node, so that one node's events keep their
//! order in one partition.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::{ProduceError, ProduceOptions, ProduceReport, Rows};
use crate::ingest::kafka::{
    KafkaClientOptions, KafkaFault, KafkaSourceOptions, PreflightReport, Session, config_fault, preflight,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// At the end so long is waited for outstanding acknowledgements.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(120);
/// Meanwhile tokens are renewed so often.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Which topic, and how to reach it.
#[derive(Clone, Debug)]
pub struct TopicTarget {
    /// How to reach the brokers.
    pub client: KafkaClientOptions,
    /// The topic.
    pub topic: String,
    /// Creates the topic with so many partitions if it does not exist.
    pub create_partitions: Option<i32>,
}

#[derive(Default)]
struct Acknowledged {
    count: AtomicU64,
    /// Rows that were sent and not acknowledged yet: partitions acknowledge one without the other.
    open: Mutex<BTreeSet<usize>>,
    failure: Mutex<Option<String>>,
    /// Keeps the client logged in.
    session: Session,
}

impl Acknowledged {
    /// Serves the client for so long, and gives it a new token if there is one.
    fn serve(producer: &BaseProducer<Self>, wait: Duration) {
        // Without a valid token messages wait, and their time runs out.
        let _ = producer.context().session.renew(producer);
        producer.poll(wait);
    }

    /// Waits until all messages are acknowledged.
    fn flush(producer: &BaseProducer<Self>) -> Result<(), KafkaError> {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        loop {
            Self::serve(producer, Duration::ZERO);
            match producer.flush(FLUSH_INTERVAL) {
                Err(_) if Instant::now() < deadline => {}
                flushed => return flushed,
            }
        }
    }
}

impl ClientContext for Acknowledged {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "producer");
    }
}

impl ProducerContext for Acknowledged {
    /// The row.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, row: Self::DeliveryOpaque) {
        match result {
            Ok(_) => {
                self.count.fetch_add(1, SeqCst);
                self.open.lock().remove(&row);
            }
            Err((error, _)) => {
                self.failure.lock().get_or_insert_with(|| error.to_string());
            }
        }
    }
}

impl TopicTarget {
    /// Makes sure that the topic is there.
    ///
    /// # Errors
    /// The fault that keeps it from being used.
    pub fn prepare(&self) -> Result<(), KafkaFault> {
        self.prepare_with(&[]).map(drop)
    }

    /// The same, with settings for a topic that is created: what was found of one that was there, `None` where it was
    /// created.
    pub(in crate::ingest) fn prepare_with(
        &self,
        settings: &[(&str, &str)],
    ) -> Result<Option<PreflightReport>, KafkaFault> {
        let mut options = KafkaSourceOptions::new(&self.client.brokers, &self.topic, "evergraph-ingest");
        options.client = self.client.clone();
        match (preflight(&options, CONNECT_TIMEOUT), self.create_partitions) {
            (Ok(report), _) => Ok(Some(report)),
            (Err(KafkaFault::TopicMissing { .. }), Some(partitions)) => {
                self.create(partitions, settings).map(|()| None)
            }
            (Err(fault), _) => Err(fault),
        }
    }

    fn create(&self, partitions: i32, settings: &[(&str, &str)]) -> Result<(), KafkaFault> {
        let fault = |code: String, detail: String| KafkaFault::Other { code, detail };
        let config = self.client.config(&[]);
        let admin: AdminClient<DefaultClientContext> =
            self.client.open(&config, DefaultClientContext, CONNECT_TIMEOUT)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| fault("runtime".into(), e.to_string()))?;
        let mut topic = NewTopic::new(&self.topic, partitions, TopicReplication::Fixed(-1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(CONNECT_TIMEOUT));
        let results = runtime
            .block_on(admin.create_topics([&topic], &options))
            .map_err(|e| fault("create_topics".into(), e.to_string()))?;
        for result in results {
            match result {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    return Err(fault(
                        format!("{code:?}"),
                        format!("topic {topic} cannot be created: {code}"),
                    ));
                }
            }
        }
        Ok(())
    }

    pub(super) fn push(
        &self,
        options: &ProduceOptions,
        mut rows: Rows<'_>,
    ) -> Result<ProduceReport, ProduceError> {
        self.prepare()?;
        let context = Acknowledged { session: Session::of(&self.client)?, ..Acknowledged::default() };
        let producer: BaseProducer<Acknowledged> =
            self.producer_config().create_with_context(context).map_err(|error| config_fault(&error))?;
        producer.context().session.log_in(&producer, CONNECT_TIMEOUT)?;
        rows.skip(options.from_row)?;
        let not_acknowledged = |rows: &Rows<'_>, detail| {
            let first = producer.context().open.lock().first().map(|&row| row as u64);
            ProduceError::NotAcknowledged { detail, from_row: first.unwrap_or(rows.row) }
        };
        let (mut value, mut has_begun) = (Vec::new(), false);
        while let Some(src) = {
            value.clear();
            rows.next_into(&mut value)?
        } {
            let (key, row) = (src.to_string(), rows.row.saturating_sub(1) as usize);
            producer.context().open.lock().insert(row);
            let mut record = BaseRecord::with_opaque_to(&self.topic, row).key(&key).payload(&value);
            loop {
                match producer.send(record) {
                    Ok(()) => break,
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                        record = back;
                        Acknowledged::serve(&producer, Duration::from_millis(10));
                        rows.report.sent = producer.context().count.load(SeqCst);
                        rows.report_progress(false);
                    }
                    Err((error, _)) => return Err(not_acknowledged(&rows, error.to_string())),
                }
            }
            // Connecting takes a while, and all that was due meanwhile would come at once. Brokers of other partitions
            // are connected later.
            if !std::mem::replace(&mut has_begun, true) && rows.pace.is_some() {
                Acknowledged::flush(&producer).map_err(|e| not_acknowledged(&rows, e.to_string()))?;
                rows.begin_pace();
            }
            if rows.report.rows.is_multiple_of(256) {
                Acknowledged::serve(&producer, Duration::ZERO);
                rows.report.sent = producer.context().count.load(SeqCst);
                rows.report_progress(false);
            }
            if let Some(failure) = producer.context().failure.lock().take() {
                return Err(not_acknowledged(&rows, failure));
            }
        }
        let flushed = Acknowledged::flush(&producer);
        rows.report.sent = producer.context().count.load(SeqCst);
        rows.report_progress(true);
        if let Some(failure) = producer.context().failure.lock().take() {
            return Err(not_acknowledged(&rows, failure));
        }
        flushed.map_err(|e| not_acknowledged(&rows, e.to_string()))?;
        Ok(rows.report)
    }

    fn producer_config(&self) -> rdkafka::ClientConfig {
        let mut config = self.client.config(&[
            ("linger.ms", "20"),
            ("batch.num.messages", "10000"),
            ("compression.type", "zstd"),
            ("queue.buffering.max.messages", "200000"),
        ]);
        config.set("enable.idempotence", "true");
        config
    }
}
