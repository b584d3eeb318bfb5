//! Converts the settings of sources into the sources' options.

use std::time::Duration;

use crate::config::{self, Config, IngestKafka, LostDataPolicy, Topic};
use crate::ingest::dead_letter::{DeadLetterFileOptions, DeadLetterTarget, DeadLetterTopicOptions};
use crate::ingest::decode::{DecodeOptions, Tombstones};
use crate::ingest::kafka::{DataLossPolicy, KafkaClientOptions, KafkaSourceOptions};
use crate::ingest::push::PushOptions;

pub(super) fn push_options(config: &Config) -> PushOptions {
    PushOptions {
        max_events: config.api.batch_items_max,
        decode: decode_options(config),
        ..PushOptions::default()
    }
}

/// Bounds of one event.
#[must_use]
pub fn decode_options(config: &Config) -> DecodeOptions {
    let stream = &config.stream;
    let dimension = stream.edge_feature_dimension.max(stream.node_feature_dimension);
    DecodeOptions {
        edge_features: Some(stream.edge_feature_dimension),
        node_features: Some(stream.node_feature_dimension),
        ..DecodeOptions::for_rows_of(dimension)
    }
}

/// The file of dead letters.
#[must_use]
pub fn dead_letter_file(config: &Config) -> DeadLetterFileOptions {
    let folder = config.data.dir.join("dead-letters");
    let mut file = DeadLetterFileOptions::new(folder.join("dead-letters.jsonl"));
    file.max_bytes = config.ingest.dead_letter_file_bytes_max;
    file
}

pub(super) fn dead_letter_target(config: &Config) -> DeadLetterTarget {
    let file = dead_letter_file(config);
    let kafka = &config.ingest.kafka;
    if kafka.brokers.is_empty() || kafka.dead_letter_topic.is_empty() {
        return DeadLetterTarget::File(file);
    }
    let mut topic = DeadLetterTopicOptions::new(&kafka.brokers, &kafka.dead_letter_topic);
    topic.client = client_options(kafka);
    DeadLetterTarget::Topic(topic, file)
}

/// Connection to the broker.
#[must_use]
pub fn client_options(kafka: &IngestKafka) -> KafkaClientOptions {
    let mut client = KafkaClientOptions::new(&kafka.brokers);
    client.properties = kafka.properties.0.clone();
    client
}

/// The topic of dead letters that a topic has for itself.
pub(super) fn own_dead_letter_topic(config: &Config, topic: &Topic) -> Option<DeadLetterTopicOptions> {
    let kafka = &config.ingest.kafka;
    if topic.dead_letter_topic.is_empty() || topic.dead_letter_topic == kafka.dead_letter_topic {
        return None;
    }
    let mut own = DeadLetterTopicOptions::new(&kafka.brokers, &topic.dead_letter_topic);
    own.client = client_options(kafka);
    Some(own)
}

/// The Kafka source of every topic of the settings; none without brokers.
#[must_use]
pub fn kafka_sources(config: &Config) -> Vec<KafkaSourceOptions> {
    let kafka = &config.ingest.kafka;
    if kafka.brokers.is_empty() {
        return Vec::new();
    }
    kafka.all_topics().iter().map(|topic| kafka_options(config, &topic.settings)).collect()
}

/// The Kafka source of a topic.
#[must_use]
pub fn kafka_options(config: &Config, topic: &Topic) -> KafkaSourceOptions {
    let kafka = &config.ingest.kafka;
    let mut options = KafkaSourceOptions::new(&kafka.brokers, &topic.topic, &kafka.group);
    options.decode = decode_options(config);
    options.decode.tombstones = match topic.tombstones {
        config::Tombstones::DeleteNode => Tombstones::DeleteNode,
        config::Tombstones::Ignore => Tombstones::Ignore,
        config::Tombstones::DeadLetter => Tombstones::DeadLetter,
    };
    options.mapping = config.mapping(&topic.mapping);
    options.client = client_options(kafka);
    options.batch_max_events = kafka.batch_messages_max;
    options.batch_wait = Duration::from_millis(kafka.batch_wait_ms);
    options.data_loss = match kafka.lost_data_policy {
        LostDataPolicy::Fail => DataLossPolicy::Fail,
        LostDataPolicy::Earliest => DataLossPolicy::Earliest,
    };
    options
}
