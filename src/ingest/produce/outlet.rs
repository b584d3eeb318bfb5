//! [`TopicOutlet`]: a topic that messages are delivered to until its brokers have acknowledged them. It is checked
//! before the first delivery and after each that failed.

use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};

use super::TopicTarget;
use super::batch::{BatchOptions, BatchProducer, Record};
use crate::ingest::kafka::{KafkaClientOptions, KafkaFault, KafkaSourceOptions, is_compacted, preflight};

/// How long the check of a topic may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Which topic, and how to reach it.
#[derive(Clone, Debug)]
pub struct OutletOptions {
    /// How to reach the brokers.
    pub client: KafkaClientOptions,
    /// The topic.
    pub topic: String,
    /// Creates the topic with so many partitions if it does not exist.
    pub create_partitions: Option<i32>,
    /// Whether the topic is one of the latest message of each key.
    pub compacted: bool,
    /// A delivery that takes longer has failed.
    pub timeout: Duration,
}

/// A topic that messages are delivered to.
pub(super) struct TopicOutlet {
    options: OutletOptions,
    producer: Option<BatchProducer>,
    /// Whether the topic was created since this was asked last.
    created: bool,
}

/// A message.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Message {
    pub key: String,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(&'static str, String)>,
}

impl TopicOutlet {
    /// A topic that was not looked at yet.
    pub fn new(options: OutletOptions) -> Self {
        Self { options, producer: None, created: false }
    }

    /// Checks the topic, or creates it where the options say so; returns how many partitions it has.
    pub fn check(&mut self) -> Result<usize, KafkaFault> {
        let OutletOptions { client, topic, create_partitions, compacted, .. } = self.options.clone();
        let mut reader = KafkaSourceOptions::new("", &topic, "evergraph-outlet");
        reader.client = client.clone();
        let target = TopicTarget { client, topic: topic.clone(), create_partitions };
        let found = target.prepare_with(if compacted { &[("cleanup.policy", "compact")] } else { &[] })?;
        self.created |= found.is_none();
        let report = match found {
            Some(report) => report,
            // Another may have created it just before, with other partitions.
            None => preflight(&reader, CHECK_TIMEOUT)?,
        };
        let partitions = report.partitions.len();
        match is_compacted(&reader, CHECK_TIMEOUT) {
            Ok(false) if compacted => tracing::warn!(
                topic,
                "the topic is not compacted: a reader who begins late misses what its retention has removed; set its \
                 cleanup.policy to compact"
            ),
            Ok(_) => {}
            Err(fault) => tracing::debug!(topic, %fault, "whether the topic is compacted is not known"),
        }
        Ok(partitions)
    }

    /// Whether the topic was created since the last call: then nothing is in it.
    pub fn take_created(&mut self) -> bool {
        std::mem::take(&mut self.created)
    }

    /// Delivers messages: returns when the brokers have acknowledged all of them. Else, in words, why they are to be
    /// delivered again.
    pub fn deliver(&mut self, messages: &[Message]) -> Result<(), String> {
        let producer = match &mut self.producer {
            Some(producer) => producer,
            None => {
                let checked = self.check();
                checked.map_err(|fault| fault.to_string())?;
                let OutletOptions { client, topic, timeout, .. } = self.options.clone();
                let opened = BatchProducer::open(BatchOptions { client, topic, timeout });
                self.producer.insert(opened.map_err(|error| error.to_string())?)
            }
        };
        match producer.deliver(messages, complete) {
            Ok(too_large) if too_large.is_empty() => Ok(()),
            Ok(too_large) => Err(format!(
                "{} messages are larger than topic {} takes: raise its max.message.bytes and the property \
                 message.max.bytes",
                too_large.len(),
                self.options.topic
            )),
            Err(detail) => {
                // What the topic has become is looked at first.
                self.producer = None;
                Err(detail)
            }
        }
    }
}

fn complete<'a>(message: &'a Message, record: Record<'a>) -> Record<'a> {
    let mut headers = OwnedHeaders::new_with_capacity(message.headers.len());
    for (key, value) in &message.headers {
        headers = headers.insert(Header { key, value: Some(value) });
    }
    let record = record.key(message.key.as_bytes()).headers(headers);
    match &message.value {
        Some(value) => record.payload(value),
        None => record,
    }
}
