//! Dead letters as Kafka messages: the original key and bytes, the original headers, and headers
//! `evergraph.*` that say why and where from.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};

use super::{DeadLetter, DeadLetterError};
use crate::ingest::kafka::KafkaClientOptions;

/// Which topic, and how to reach it.
#[derive(Clone, Debug)]
pub struct DeadLetterTopicOptions {
    /// How to reach the brokers.
    pub client: KafkaClientOptions,
    /// The topic.
    pub topic: String,
    /// A delivery that takes longer goes to the file.
    pub timeout: Duration,
}

impl DeadLetterTopicOptions {
    /// A topic on these brokers; 10 s until the file takes over.
    #[must_use]
    pub fn new(brokers: &str, topic: &str) -> Self {
        let client = KafkaClientOptions::new(brokers);
        Self { client, topic: topic.into(), timeout: Duration::from_secs(10) }
    }
}

pub(super) struct TopicSink {
    options: DeadLetterTopicOptions,
    /// One delivery at a time, so that the outcome counters belong to it.
    producer: Mutex<BaseProducer<Outcomes>>,
}

/// Counts deliveries and remembers the last failure.
#[derive(Default)]
struct Outcomes {
    delivered: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl ClientContext for Outcomes {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "dead-letter producer");
    }
}

impl ProducerContext for Outcomes {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): Self::DeliveryOpaque) {
        match result {
            Ok(_) => {
                self.delivered.fetch_add(1, SeqCst);
            }
            Err((error, _)) => *self.failure.lock() = Some(error.to_string()),
        }
    }
}

impl TopicSink {
    pub(super) fn open(options: DeadLetterTopicOptions) -> Result<Self, DeadLetterError> {
        let mut config = options.client.config(&[]);
        config
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("compression.type", "zstd")
            .set("message.timeout.ms", options.timeout.as_millis().max(100).to_string())
            .set("request.timeout.ms", options.timeout.as_millis().clamp(50, 5000).to_string());
        let producer = config
            .create_with_context(Outcomes::default())
            .map_err(|e| DeadLetterError::Topic { topic: options.topic.clone(), detail: e.to_string() })?;
        Ok(Self { options, producer: Mutex::new(producer) })
    }

    /// Sends the letters and waits until the broker has acknowledged every one.
    pub(super) fn deliver(&self, letters: &[DeadLetter]) -> Result<(), DeadLetterError> {
        let fail = |detail| DeadLetterError::Topic { topic: self.options.topic.clone(), detail };
        let producer = self.producer.lock();
        let outcomes = producer.context();
        *outcomes.failure.lock() = None;
        let before = outcomes.delivered.load(SeqCst);
        for letter in letters {
            self.send(&producer, letter).map_err(fail)?;
        }
        // Messages time out on their own after `timeout`; the flush only has to outlast that.
        let flushed = producer.flush(self.options.timeout + Duration::from_secs(1));
        if let Some(failure) = outcomes.failure.lock().take() {
            return Err(fail(failure));
        }
        flushed.map_err(|e| fail(e.to_string()))?;
        let delivered = outcomes.delivered.load(SeqCst) - before;
        if delivered < letters.len() as u64 {
            return Err(fail(format!("{delivered} of {} were acknowledged", letters.len())));
        }
        Ok(())
    }

    fn send(&self, producer: &BaseProducer<Outcomes>, letter: &DeadLetter) -> Result<(), String> {
        let mut record: BaseRecord<'_, [u8], [u8]> =
            BaseRecord::to(&self.options.topic).headers(headers(letter));
        if let Some(key) = &letter.key {
            record = record.key(key);
        }
        if let Some(payload) = &letter.payload {
            record = record.payload(payload);
        }
        let deadline = std::time::Instant::now() + self.options.timeout;
        loop {
            match producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if std::time::Instant::now() < deadline =>
                {
                    record = back;
                    producer.poll(Duration::from_millis(20));
                }
                Err((error, _)) => return Err(error.to_string()),
            }
        }
    }
}

fn headers(letter: &DeadLetter) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new_with_capacity(letter.headers.len() + 7);
    for (key, value) in &letter.headers {
        headers = headers.insert(Header { key, value: value.as_ref() });
    }
    let partition = letter.partition.to_string();
    let offset = letter.offset.to_string();
    let received = letter.received_unix_ms.to_string();
    let ours = [
        ("evergraph.reason", letter.rejection.reason.as_str()),
        ("evergraph.detail", &letter.rejection.detail),
        ("evergraph.source", &letter.source),
        ("evergraph.partition", &partition),
        ("evergraph.offset", &offset),
        ("evergraph.received_unix_ms", &received),
        ("evergraph.version", env!("CARGO_PKG_VERSION")),
    ];
    for (key, value) in ours {
        headers = headers.insert(Header { key, value: Some(value) });
    }
    headers
}
