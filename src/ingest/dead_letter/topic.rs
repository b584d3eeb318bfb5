//! Dead letters as Kafka messages: the original key and bytes, the original headers, and headers
//! `evergraph.*` with the reason and the origin. Letters that a message cannot hold are returned, so that they
//! can be kept elsewhere; that is no fault of the topic.
//!
//! A delivery that fails ends with its client: one of librdkafka may have lost its list of brokers, and
//! then it never connects again (librdkafka issue 5301).

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
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
    /// One delivery at a time, so that the outcomes belong to it.
    producer: Mutex<BaseProducer<Outcomes>>,
}

/// The right to deliver; others wait for it.
pub(super) struct Turn<'a> {
    options: &'a DeadLetterTopicOptions,
    producer: MutexGuard<'a, BaseProducer<Outcomes>>,
    /// Whether letters go to the partition that they came from, in place of one that follows from their key.
    to_own_partitions: bool,
}

/// What became of the messages of one delivery.
#[derive(Default)]
struct Delivery {
    /// Late reports of an earlier delivery carry another number.
    number: u32,
    acknowledged: usize,
    too_large: Vec<usize>,
    failure: Option<String>,
}

#[derive(Default)]
struct Outcomes(Mutex<Delivery>);

impl ClientContext for Outcomes {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "dead-letter producer");
    }
}

impl ProducerContext for Outcomes {
    /// The number of the delivery and the index of the letter.
    type DeliveryOpaque = Box<(u32, usize)>;

    fn delivery(&self, result: &DeliveryResult<'_>, tag: Self::DeliveryOpaque) {
        let (number, index) = *tag;
        let mut delivery = self.0.lock();
        if number != delivery.number {
            return;
        }
        match result {
            Ok(_) => delivery.acknowledged += 1,
            Err((error, _)) if is_too_large(error) => delivery.too_large.push(index),
            Err((error, _)) => delivery.failure = Some(error.to_string()),
        }
    }
}

fn is_too_large(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge)
}

impl TopicSink {
    pub(super) fn open(options: DeadLetterTopicOptions) -> Result<Self, DeadLetterError> {
        let producer = connect(&options)
            .map_err(|e| DeadLetterError::Topic { topic: options.topic.clone(), detail: e.to_string() })?;
        Ok(Self { options, producer: Mutex::new(producer) })
    }

    /// The right to deliver, if whoever has it gives it back in time.
    pub(super) fn turn(&self, wait: Duration) -> Option<Turn<'_>> {
        let producer = self.producer.try_lock_for(wait)?;
        Some(Turn { options: &self.options, producer, to_own_partitions: false })
    }

    /// As [`Turn::deliver`], each letter to the partition that it came from.
    pub(super) fn send_back(&self, letters: &[DeadLetter]) -> Result<Vec<usize>, DeadLetterError> {
        let producer = self.producer.lock();
        Turn { options: &self.options, producer, to_own_partitions: true }.deliver(letters)
    }
}

fn connect(options: &DeadLetterTopicOptions) -> KafkaResult<BaseProducer<Outcomes>> {
    let mut config = options.client.config(&[]);
    config
        .set("enable.idempotence", "true")
        .set("linger.ms", "5")
        .set("compression.type", "zstd")
        .set("message.timeout.ms", options.timeout.as_millis().max(100).to_string())
        .set("request.timeout.ms", options.timeout.as_millis().clamp(50, 5000).to_string());
    config.create_with_context(Outcomes::default())
}

impl Turn<'_> {
    /// Sends the letters and waits until the broker has acknowledged every one; returns the indices of
    /// those that are too large for a message. After a failure the next delivery has a new client.
    pub(super) fn deliver(&mut self, letters: &[DeadLetter]) -> Result<Vec<usize>, DeadLetterError> {
        let delivered = self.send_all(letters);
        if delivered.is_err() {
            match connect(self.options) {
                Ok(producer) => {
                    let old = std::mem::replace(&mut *self.producer, producer);
                    // Closing waits for librdkafka's threads, which may be waiting for a name or a broker. Without a
                    // thread the closure is dropped here, which closes it as well.
                    drop(std::thread::Builder::new().name("kafka-close".into()).spawn(move || drop(old)));
                }
                Err(error) => tracing::debug!(%error, "the dead-letter producer stays"),
            }
        }
        delivered
    }

    fn send_all(&self, letters: &[DeadLetter]) -> Result<Vec<usize>, DeadLetterError> {
        let fail = |detail| DeadLetterError::Topic { topic: self.options.topic.clone(), detail };
        let outcomes = &self.producer.context().0;
        let number = outcomes.lock().number.wrapping_add(1);
        *outcomes.lock() = Delivery { number, ..Delivery::default() };
        for (index, letter) in letters.iter().enumerate() {
            self.send(letter, (number, index)).map_err(fail)?;
        }
        // Messages time out on their own after `timeout`; the flush only has to outlast that.
        let flushed = self.producer.flush(self.options.timeout + Duration::from_secs(1));
        let delivery = std::mem::replace(&mut *outcomes.lock(), Delivery { number, ..Delivery::default() });
        if let Some(failure) = delivery.failure {
            return Err(fail(failure));
        }
        flushed.map_err(|e| fail(e.to_string()))?;
        if delivery.acknowledged + delivery.too_large.len() < letters.len() {
            return Err(fail(format!("{} of {} were acknowledged", delivery.acknowledged, letters.len())));
        }
        Ok(delivery.too_large)
    }

    fn send(&self, letter: &DeadLetter, tag: (u32, usize)) -> Result<(), String> {
        let mut record: BaseRecord<'_, [u8], [u8], Box<(u32, usize)>> =
            BaseRecord::with_opaque_to(&self.options.topic, Box::new(tag)).headers(headers(letter));
        if self.to_own_partitions {
            record = record.partition(letter.partition);
        }
        if let Some(key) = &letter.key {
            record = record.key(key);
        }
        if let Some(payload) = &letter.payload {
            record = record.payload(payload);
        }
        let deadline = std::time::Instant::now() + self.options.timeout;
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if std::time::Instant::now() < deadline =>
                {
                    record = back;
                    self.producer.poll(Duration::from_millis(20));
                }
                Err((error, _)) if is_too_large(&error) => {
                    self.producer.context().0.lock().too_large.push(tag.1);
                    return Ok(());
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
