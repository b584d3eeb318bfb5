//! What the source of each topic is started with, and started again with after a seek.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::super::source_options::{kafka_sources, own_dead_letter_topic};
use crate::config::Config;
use crate::ingest::SourceWiring;
use crate::ingest::kafka::{ClusterMemory, KafkaSourceOptions};

/// By the source's name.
pub(super) type TopicSources = BTreeMap<String, (KafkaSourceOptions, SourceWiring)>;

/// Every topic of the settings.
pub(super) fn sources(
    config: &Config,
    wiring: &SourceWiring,
    clusters: &ClusterMemory,
) -> Result<TopicSources> {
    let mut sources = BTreeMap::new();
    for (topic, mut options) in kafka_sources(config)? {
        options.clusters = clusters.clone();
        let mut wiring = wiring.clone();
        if let Some(own) = own_dead_letter_topic(config, &topic.settings) {
            let key = format!("{}.dead_letter_topic", topic.section);
            wiring.dead_letters = wiring.dead_letters.with_topic(own).context(key)?;
        }
        sources.insert(options.source_name(), (options, wiring));
    }
    Ok(sources)
}
