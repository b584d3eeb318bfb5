//! Dead letters as Kafka messages: the original key and bytes, the original headers, and headers
//! `evergraph.*` with the reason and the origin. Letters that a message cannot hold are returned, so that they
//! can be kept elsewhere; that is no fault of the topic.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rdkafka::message::{Header, OwnedHeaders};

use super::{DeadLetter, DeadLetterError};
use crate::ingest::kafka::KafkaClientOptions;
use crate::ingest::produce::{BatchOptions, BatchProducer, Record};

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
    topic: String,
    producer: Mutex<BatchProducer>,
}

/// The right to deliver; others wait for it.
pub(super) struct Turn<'a> {
    topic: &'a str,
    producer: MutexGuard<'a, BatchProducer>,
    /// Whether letters go to the partition that they came from, in place of one that follows from their key.
    to_own_partitions: bool,
}

impl TopicSink {
    pub(super) fn open(options: DeadLetterTopicOptions) -> Result<Self, DeadLetterError> {
        let DeadLetterTopicOptions { client, topic, timeout } = options;
        let producer = BatchProducer::open(BatchOptions { client, topic: topic.clone(), timeout });
        match producer {
            Ok(producer) => Ok(Self { topic, producer: Mutex::new(producer) }),
            Err(error) => Err(DeadLetterError::Topic { topic, detail: error.to_string() }),
        }
    }

    /// The right to deliver, if whoever has it gives it back in time.
    pub(super) fn turn(&self, wait: Duration) -> Option<Turn<'_>> {
        let producer = self.producer.try_lock_for(wait)?;
        Some(Turn { topic: &self.topic, producer, to_own_partitions: false })
    }

    /// As [`Turn::deliver`], each letter to the partition that it came from.
    pub(super) fn send_back(&self, letters: &[DeadLetter]) -> Result<Vec<usize>, DeadLetterError> {
        let producer = self.producer.lock();
        Turn { topic: &self.topic, producer, to_own_partitions: true }.deliver(letters)
    }
}

impl Turn<'_> {
    /// Sends the letters and waits until the broker has acknowledged every one; returns the indices of
    /// those that are too large for a message.
    pub(super) fn deliver(&mut self, letters: &[DeadLetter]) -> Result<Vec<usize>, DeadLetterError> {
        let to_own = self.to_own_partitions;
        let delivered = self.producer.deliver(letters, |letter, record| complete(letter, to_own, record));
        delivered.map_err(|detail| DeadLetterError::Topic { topic: self.topic.to_owned(), detail })
    }
}

fn complete<'a>(letter: &'a DeadLetter, to_own_partition: bool, record: Record<'a>) -> Record<'a> {
    let mut record = record.headers(headers(letter));
    if to_own_partition {
        record = record.partition(letter.partition);
    }
    if let Some(key) = &letter.key {
        record = record.key(key);
    }
    if let Some(payload) = &letter.payload {
        record = record.payload(payload);
    }
    record
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
