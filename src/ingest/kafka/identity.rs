//! Whether a partition still is what was read of it.
//!
//! A topic that was deleted and created again has the name and the offsets of the old one, and a partition that lost
//! its end to a broker without all of its messages grows past the old end again. The messages show it: one never
//! changes. So each run of offsets in the log carries a mark of its last message, and before reading starts the broker
//! is asked for the message at that offset. Another message there is a fault. A topic's id would show less (nothing of
//! a lost end), and a leader epoch may be the same by chance.
//!
//! No message there is a fault too, unless the topic is compacted. While it cannot be found out whether it is, the
//! partition waits: another topic must not be read as if it were the old one. Where retention has removed the message
//! nothing can be compared, and reading goes on. While reading goes on nothing is compared either: a topic that goes
//! away or changes its id is noticed by librdkafka, and then this check is due again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::KafkaSourceOptions;
use super::context::other;
use super::fault::KafkaFault;
use crate::event::SourceMark;

/// What stands at a mark's offset now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The message that was read.
    Same,
    /// Another one.
    Other,
    /// None.
    Nothing,
}

/// The mark of a message. An absent key or value is not an empty one.
pub(super) fn mark_of(message: &impl Message) -> SourceMark {
    let part = |seed: u64, bytes: Option<&[u8]>| match bytes {
        Some(bytes) => xxh3_64_with_seed(bytes, seed.wrapping_add(1)),
        None => seed,
    };
    let time = message.timestamp().to_millis().unwrap_or(-1).cast_unsigned();
    let hash = part(part(time, message.key()).rotate_left(1), message.payload());
    SourceMark { offset: message.offset(), hash }
}

/// A client whose faults are of no consequence.
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(target: "librdkafka", facility, "{text}");
    }
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, reason, "an error of the client while messages are compared");
    }
}

impl ConsumerContext for Quiet {}

/// What stands at the marks' offsets, by partition. Without those whose broker did not respond until `deadline`.
///
/// # Errors
/// When the client cannot be set up.
pub(super) fn compare(
    options: &KafkaSourceOptions,
    marks: &BTreeMap<i32, SourceMark>,
    deadline: Instant,
) -> Result<BTreeMap<i32, Found>, KafkaFault> {
    let mut found = BTreeMap::new();
    let mut config = options.consumer_config()?;
    config.remove("statistics.interval.ms");
    // A message of a transaction that was given up is another message, too.
    config.set("isolation.level", "read_uncommitted").set("queued.max.messages.kbytes", "1024");
    let wait = deadline.saturating_duration_since(Instant::now());
    let consumer: BaseConsumer<Quiet> = options.client.open(&config, Quiet, wait)?;
    let mut starts = TopicPartitionList::with_capacity(marks.len());
    for (&partition, mark) in marks {
        let offset = Offset::Offset(mark.offset);
        starts.add_partition_offset(&options.topic, partition, offset).map_err(|e| other(&e))?;
    }
    consumer.assign(&starts).map_err(|e| other(&e))?;
    while found.len() < marks.len() && Instant::now() < deadline {
        match consumer.poll(Duration::from_millis(50)) {
            Some(Ok(message)) => {
                let Some(mark) = marks.get(&message.partition()) else { continue };
                let is = match mark_of(&message) {
                    at if at.offset < mark.offset => continue,
                    at if at.offset > mark.offset => Found::Nothing,
                    at if at == *mark => Found::Same,
                    _ => Found::Other,
                };
                found.entry(message.partition()).or_insert(is);
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                found.entry(partition).or_insert(Found::Nothing);
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "an error of the client while messages are compared")
            }
            None => {}
        }
    }
    Ok(found)
}

/// Whether messages of the topic may vanish one by one.
///
/// # Errors
/// When the brokers do not say so: the fault names the right that is missing, if it is that.
pub(in crate::ingest) fn is_compacted(
    options: &KafkaSourceOptions,
    timeout: Duration,
) -> Result<bool, KafkaFault> {
    let config = options.client.config(&[]);
    let admin: AdminClient<DefaultClientContext> =
        options.client.open(&config, DefaultClientContext, timeout)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| KafkaFault::Other { code: "runtime".into(), detail: e.to_string() })?;
    let topic = ResourceSpecifier::Topic(&options.topic);
    let settings = AdminOptions::new().request_timeout(Some(timeout));
    let unknown = |detail: String| KafkaFault::PolicyUnknown { topic: options.topic.clone(), detail };
    let described = runtime.block_on(admin.describe_configs([&topic], &settings));
    let described = described.map_err(|error| unknown(error.to_string()))?.into_iter().next();
    let config = match described {
        // The client drops the error that a topic's configuration comes with instead of entries.
        Some(Ok(config)) if config.entries.is_empty() => {
            return Err(KafkaFault::ConfigDenied { topic: options.topic.clone() });
        }
        Some(Ok(config)) => config,
        Some(Err(code)) => return Err(unknown(code.to_string())),
        None => return Err(unknown("the response names no topic".into())),
    };
    let policy = config.entries.into_iter().find(|entry| entry.name == "cleanup.policy");
    let policy = policy.and_then(|entry| entry.value);
    policy.map(|policy| policy.contains("compact")).ok_or_else(|| unknown("it is not in the response".into()))
}

#[cfg(test)]
mod tests {
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    use super::*;

    #[test]
    fn a_mark_tells_messages_apart_by_each_of_their_parts() {
        let message = |key: Option<&[u8]>, value: Option<&[u8]>, time: i64| {
            let (key, value) = (key.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec));
            OwnedMessage::new(value, key, "t".into(), Timestamp::CreateTime(time), 0, 7, None)
        };
        let mut hashes: Vec<u64> = [
            message(None, None, 1),
            message(Some(b""), None, 1),
            message(None, Some(b""), 1),
            message(Some(b""), Some(b""), 1),
            message(Some(b"a"), Some(b"b"), 1),
            message(Some(b"b"), Some(b"a"), 1),
            message(Some(b"ab"), Some(b""), 1),
            message(Some(b"a"), Some(b"b"), 2),
        ]
        .iter()
        .map(|message| mark_of(message).hash)
        .collect();
        assert_eq!(mark_of(&message(Some(b"a"), Some(b"b"), 1)), SourceMark { offset: 7, hash: hashes[4] });
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 8);
    }
}
