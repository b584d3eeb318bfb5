//! Converts the settings of sources and of the change feed into their options.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{self, Config, IngestKafka, LostDataPolicy, Topic, TopicSection};
use crate::ingest::dead_letter::{DeadLetterFileOptions, DeadLetterTarget, DeadLetterTopicOptions};
use crate::ingest::decode::{DecodeOptions, Tombstones};
use crate::ingest::kafka::{DataLossPolicy, KafkaClientOptions, KafkaSourceOptions};
use crate::ingest::produce::{FeedFormat, OutletOptions};
use crate::ingest::push::PushOptions;
use crate::ingest::registry::{Format, Registry, RegistryError, RegistryOptions, Wire};
use crate::ingest::replication::ReplicationOptions;

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

/// The topic of the change feed, and what its messages are.
#[must_use]
pub fn feed_options(config: &Config) -> (OutletOptions, FeedFormat) {
    let feed = &config.feed;
    let format = match feed.format {
        config::FeedFormat::Json => FeedFormat::Json,
        config::FeedFormat::Binary => FeedFormat::Binary,
        config::FeedFormat::Qdrant => FeedFormat::Qdrant(feed.collection.clone()),
    };
    let outlet = outlet_options(config, (&feed.brokers, &feed.topic), feed.create_partitions);
    (OutletOptions { compacted: true, ..outlet }, format)
}

/// The topic of anomalies.
#[must_use]
pub fn anomaly_options(config: &Config) -> OutletOptions {
    let anomalies = &config.anomalies;
    outlet_options(config, (&anomalies.brokers, &anomalies.topic), anomalies.create_partitions)
}

fn outlet_options(config: &Config, (brokers, topic): (&str, &str), create_partitions: u64) -> OutletOptions {
    let mut client = client_options(&config.ingest.kafka);
    if !brokers.is_empty() {
        brokers.clone_into(&mut client.brokers);
    }
    OutletOptions {
        client,
        topic: topic.to_owned(),
        create_partitions: i32::try_from(create_partitions).ok().filter(|count| *count > 0),
        compacted: false,
        timeout: Duration::from_secs(10),
    }
}

/// The topics between a leader and its replicas.
#[must_use]
pub fn replication_options(config: &Config) -> ReplicationOptions {
    let mut client = client_options(&config.ingest.kafka);
    if !config.cluster.brokers.is_empty() {
        config.cluster.brokers.clone_into(&mut client.brokers);
    }
    ReplicationOptions { client, prefix: config.cluster.topics.clone() }
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

/// The Kafka source of every topic of the settings; none without brokers. They share a registry and what it knows.
///
/// # Errors
/// When the registry's certificates cannot be used.
pub fn kafka_sources(config: &Config) -> Result<Vec<(TopicSection, KafkaSourceOptions)>, RegistryError> {
    let kafka = &config.ingest.kafka;
    if kafka.brokers.is_empty() {
        return Ok(Vec::new());
    }
    let registry = schema_registry(config)?;
    let source = |topic: TopicSection| {
        let mut options = kafka_options(config, &topic.settings);
        options.wire = match topic.settings.format {
            Format::Json => None,
            Format::JsonSchema => Some(Wire::JsonSchema),
            Format::Avro | Format::Protobuf => registry.clone().map(Wire::BySchema),
        };
        (topic, options)
    };
    Ok(kafka.all_topics().into_iter().map(source).collect())
}

/// The schema registry of the settings, if they have one.
///
/// # Errors
/// When its certificates cannot be used.
pub fn schema_registry(config: &Config) -> Result<Option<Arc<Registry>>, RegistryError> {
    let registry = &config.ingest.kafka.registry;
    if registry.url.is_empty() {
        return Ok(None);
    }
    let options = RegistryOptions {
        url: registry.url.clone(),
        username: registry.username.clone(),
        password: registry.password.0.clone(),
        token: registry.token.0.clone(),
        ca_file: registry.ca_file.clone(),
    };
    Registry::open(&options).map(|registry| Some(Arc::new(registry)))
}

/// How a topic is reached and what its messages mean, without how they are unwrapped.
#[must_use]
fn kafka_options(config: &Config, topic: &Topic) -> KafkaSourceOptions {
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
