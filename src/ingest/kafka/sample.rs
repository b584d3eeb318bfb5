//! The newest messages of a topic, to show how they are read. Reads beside the source and commits nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::{Offset, TopicPartitionList};

use super::context::other;
use super::identity::Quiet;
use super::{KafkaFault, KafkaSourceOptions, PartitionRange};
use crate::ingest::mapping::{Message, MessageReader};

/// A message of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledMessage {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
    /// Its headers.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl SampledMessage {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect()
        });
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
        }
    }

    /// A header by its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut headers = self.headers.iter();
        headers.find(|(key, _)| key.eq_ignore_ascii_case(name))?.1.as_deref()
    }

    /// The same with its value as the text that it is read as, where that can be had.
    #[must_use]
    pub fn unwrapped(&self, reader: &MessageReader) -> Self {
        let text = self.value.as_deref().and_then(|value| reader.text(value).ok());
        let value = text.or_else(|| self.value.clone());
        Self { value, ..self.clone() }
    }

    /// Does `work` with the message as mappings read it, if it has a value.
    pub fn read<R>(&self, work: impl FnOnce(&Message<'_>) -> R) -> Option<R> {
        let header = |name: &str| self.header(name);
        let value = self.value.as_deref()?;
        Some(work(&Message { key: self.key.as_deref(), value, header: &header }))
    }
}

/// The newest messages of a topic, about `count`, evenly from its partitions and in their order.
///
/// # Errors
/// When the client cannot be set up. What did not come in time is left out.
pub fn newest(
    options: &KafkaSourceOptions,
    ranges: &[PartitionRange],
    count: usize,
    timeout: Duration,
) -> Result<Vec<SampledMessage>, KafkaFault> {
    let deadline = Instant::now() + timeout;
    let mut config = options.consumer_config()?;
    config.remove("statistics.interval.ms");
    config.set("queued.max.messages.kbytes", "1024");
    let consumer: BaseConsumer<Quiet> = options.client.open(&config, Quiet, timeout)?;
    let each = i64::try_from(count.div_ceil(ranges.len().max(1))).unwrap_or(i64::MAX);
    let mut starts = TopicPartitionList::with_capacity(ranges.len());
    let mut unread = BTreeSet::new();
    for range in ranges.iter().filter(|range| range.high > range.low) {
        let from = Offset::Offset(range.high.saturating_sub(each).max(range.low));
        starts.add_partition_offset(&options.topic, range.partition, from).map_err(|e| other(&e))?;
        unread.insert(range.partition);
    }
    if unread.is_empty() {
        return Ok(Vec::new());
    }
    consumer.assign(&starts).map_err(|e| other(&e))?;
    let mut found = Vec::new();
    let most = count.saturating_add(ranges.len());
    while !unread.is_empty() && found.len() < most && Instant::now() < deadline {
        match consumer.poll(Duration::from_millis(50)) {
            Some(Ok(message)) => found.push(SampledMessage::of(&message)),
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(unread.remove(&partition)),
            Some(Err(error)) => tracing::debug!(%error, "while messages are sampled"),
            None => {}
        }
    }
    found.sort_by_key(|message| (message.partition, message.offset));
    found.truncate(count);
    Ok(found)
}
