//! What goes out to topics of Kafka: the change feed, and how unusual events were.

use serde::Deserialize;

use super::Config;
use super::check::Faults;

/// What the messages of the change feed are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedFormat {
    /// Objects of JSON.
    Json,
    /// Embeddings as bytes, the rest as headers.
    Binary,
    /// Points for Qdrant.
    Qdrant,
}

/// Which rows the change feed delivers when other weights are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNewVersion {
    /// Those of nodes as they change.
    Touched,
    /// All.
    All,
}

impl Config {
    /// Topics that cannot be written to, and numbers beside them.
    pub(super) fn check_outlets(&self, faults: &mut Faults) {
        let (feed, anomalies, kafka) = (&self.feed, &self.anomalies, &self.ingest.kafka);
        for (key, topic, brokers) in [
            ("feed.topic", &feed.topic, &feed.brokers),
            ("anomalies.topic", &anomalies.topic, &anomalies.brokers),
        ] {
            let has_brokers = !brokers.is_empty() || !kafka.brokers.is_empty();
            let allowed = "needs brokers: set ingest.kafka.brokers, or brokers beside it";
            faults.require(topic.is_empty() || has_brokers, key, topic, allowed);
            let is_read = !kafka.brokers.is_empty()
                && kafka.all_topics().iter().any(|read| read.settings.topic == *topic);
            let allowed = "must be another topic than those that events are read from";
            faults.require(!is_read || !brokers.is_empty(), key, topic, allowed);
        }
        let named = feed.format != FeedFormat::Qdrant || !feed.collection.is_empty();
        faults.require(named, "feed.collection", "(empty)", "must be set for feed.format = qdrant");
        for (key, partitions) in [
            ("feed.create_partitions", feed.create_partitions),
            ("anomalies.create_partitions", anomalies.create_partitions),
        ] {
            faults.require(partitions <= 10_000, key, partitions, "must be at most 10000");
        }
        let (percentile, allowed) = (anomalies.percentile_min, "must be at least 0 and at most 1");
        faults.require((0.0..=1.0).contains(&percentile), "anomalies.percentile_min", percentile, allowed);
        let (kept, allowed) = (anomalies.kept_max, "must be at most 1000000");
        faults.require(kept <= 1_000_000, "anomalies.kept_max", kept, allowed);
    }
}
