//! `[ingest.kafka.topics.NAME]`: further topics of one daemon, each with its own mapping and policies. The default file
//! has one, `example`, which is not read: what a topic leaves out is what stands there.

use serde::Deserialize;

use super::mapping::EXAMPLE;
use super::{Config, ConfigError, IngestKafka, Tombstones};
use crate::ingest::registry::Format;

/// The section of all topics.
pub(super) const TOPICS: &str = "ingest.kafka.topics";
/// The topic that is read where the settings name none.
const DEFAULT_TOPIC: &str = "evergraph-events";

/// How one topic is read.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // every key is documented in the default file, which is the reference
pub struct Topic {
    pub topic: String,
    pub mapping: String,
    pub format: Format,
    pub tombstones: Tombstones,
    pub dead_letter_topic: String,
}

impl Default for Topic {
    fn default() -> Self {
        Self {
            topic: String::new(),
            mapping: String::new(),
            format: Format::Json,
            tombstones: Tombstones::DeadLetter,
            dead_letter_topic: String::new(),
        }
    }
}

/// A topic that is read, and the section of the settings that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSection {
    /// `ingest.kafka`, or `ingest.kafka.topics.NAME`.
    pub section: String,
    /// The topic.
    pub settings: Topic,
}

impl IngestKafka {
    /// Every topic that is read, the one of `[ingest.kafka]` first.
    #[must_use]
    pub fn all_topics(&self) -> Vec<TopicSection> {
        let named = self.topics.iter().filter(|(_, topic)| !topic.topic.is_empty());
        let named = named.map(|(name, topic)| TopicSection {
            section: format!("{TOPICS}.{name}"),
            settings: topic.clone(),
        });
        let mut all: Vec<TopicSection> = named.collect();
        let own = match self.topic.as_str() {
            "" if all.is_empty() => DEFAULT_TOPIC,
            topic => topic,
        };
        if !own.is_empty() {
            let settings = Topic {
                topic: own.to_owned(),
                mapping: self.mapping.clone(),
                format: self.format,
                tombstones: self.tombstones,
                dead_letter_topic: String::new(),
            };
            all.insert(0, TopicSection { section: "ingest.kafka".to_owned(), settings });
        }
        all
    }

    /// The topic of the dead letters of a topic; empty means the file.
    #[must_use]
    pub fn dead_letter_topic_of<'a>(&'a self, topic: &'a Topic) -> &'a str {
        if topic.dead_letter_topic.is_empty() { &self.dead_letter_topic } else { &topic.dead_letter_topic }
    }
}

impl Config {
    /// Topics that cannot be read.
    pub(super) fn topic_faults(&self) -> Vec<ConfigError> {
        let kafka = &self.ingest.kafka;
        let mut faults = Vec::new();
        let mut fault = |key: String, detail: String| faults.push(ConfigError::Named { key, detail });
        for (name, topic) in &kafka.topics {
            if topic.topic.is_empty() && name != EXAMPLE {
                let detail = "must be the name of a topic of Kafka".to_owned();
                fault(format!("{TOPICS}.{name}.topic"), detail);
            }
        }
        let all = kafka.all_topics();
        for (place, TopicSection { section, settings }) in all.iter().enumerate() {
            let Topic { topic, mapping, format, tombstones, .. } = settings;
            if matches!(format, Format::Avro | Format::Protobuf) && kafka.registry.url.is_empty() {
                let detail = "avro and protobuf need the schemas: set ingest.kafka.registry.url".to_owned();
                fault(format!("{section}.format"), detail);
            }
            let mut before = all.iter().take(place);
            if let Some(first) = before.find(|first| first.settings.topic == *topic) {
                let detail = format!(
                    "{topic} is read by [{}] already, and a daemon reads a topic once: remove one of them",
                    first.section
                );
                fault(format!("{section}.topic"), detail);
            }
            if !mapping.is_empty() && *tombstones == Tombstones::DeleteNode {
                let detail = format!(
                    "delete_node deletes the node that the key alone names, and {section}.mapping names nodes in its \
                     own way; set it to ignore or dead_letter, and let deletes of the mapping decide what deletes"
                );
                fault(format!("{section}.tombstones"), detail);
            }
        }
        let registry = &kafka.registry;
        let key = |name: &str| format!("ingest.kafka.registry.{name}");
        let address = registry.url.strip_prefix("https://").or_else(|| registry.url.strip_prefix("http://"));
        if !registry.url.is_empty()
            && address.is_none_or(|address| address.is_empty() || address.contains('@'))
        {
            let detail = "must be as in https://registry:8081; name and password are settings of their own";
            fault(key("url"), detail.to_owned());
        }
        if !registry.token.0.is_empty() && !registry.username.is_empty() {
            fault(key("token"), "must be empty where ingest.kafka.registry.username is set".to_owned());
        }
        faults
    }

    /// What is probably not meant.
    pub(super) fn topic_warnings(&self) -> Vec<String> {
        let kafka = &self.ingest.kafka;
        let all = kafka.all_topics();
        let mut warnings = Vec::new();
        let unread = all.iter().all(|topic| topic.section != "ingest.kafka");
        if unread && (!kafka.mapping.is_empty() || kafka.tombstones != Tombstones::DeadLetter) {
            warnings.push(format!(
                "ingest.kafka.mapping and ingest.kafka.tombstones are not used, because ingest.kafka.topic is empty \
                 and [{TOPICS}] names what is read; set them there"
            ));
        }
        if kafka.brokers.is_empty() && kafka.topics.values().any(|topic| !topic.topic.is_empty()) {
            warnings.push(format!("[{TOPICS}] is not used, because ingest.kafka.brokers is empty"));
        }
        let registry = &kafka.registry;
        let has_secrets = !registry.token.0.is_empty() || !registry.password.0.is_empty();
        if has_secrets && registry.url.starts_with("http://") {
            warnings.push(
                "ingest.kafka.registry.url is plain HTTP: the credentials can be read on the way; use https"
                    .to_owned(),
            );
        }
        for TopicSection { section, settings } in &all {
            let letters = kafka.dead_letter_topic_of(settings);
            if all.iter().any(|read| read.settings.topic == letters) {
                warnings.push(format!(
                    "dead letters of [{section}] go to {letters}, which is read as well: each would be read and \
                     refused again, without end; give them a topic of their own"
                ));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("evergraph.toml");
        std::fs::write(&path, text).unwrap();
        let (faults, warnings) = Config::examine(Some(&path), &[]);
        let fault =
            |fault: super::super::Fault| format!("{}: {}", fault.key.unwrap_or_default(), fault.detail);
        faults.into_iter().map(fault).chain(warnings).collect::<Vec<_>>().join("\n")
    }

    fn topics(settings: &[(&str, &str)]) -> Vec<(String, String)> {
        let flags: Vec<_> =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let all = Config::load(None, &flags).unwrap().ingest.kafka.all_topics();
        all.into_iter().map(|topic| (topic.section, topic.settings.topic)).collect()
    }

    #[test]
    fn the_example_shows_what_every_topic_is_without_its_own_words_and_is_not_read() {
        let config = Config::default_settings().unwrap();
        assert_eq!(config.ingest.kafka.topics.len(), 1);
        assert_eq!(config.ingest.kafka.topics[EXAMPLE], Topic::default());
        assert_eq!(topics(&[]), [("ingest.kafka".to_owned(), DEFAULT_TOPIC.to_owned())]);
    }

    #[test]
    fn topics_of_sections_are_read_beside_the_one_that_is_named_first() {
        let of = |section: &str, topic: &str| (section.to_owned(), topic.to_owned());
        let section = ("ingest.kafka.topics.orders.topic", "shop.public.orders");
        let orders = || of("ingest.kafka.topics.orders", "shop.public.orders");
        assert_eq!(topics(&[section]), [orders()], "the default topic is not one that was named");
        assert_eq!(topics(&[section, ("ingest.kafka.topic", "a")]), [of("ingest.kafka", "a"), orders()]);
    }

    #[test]
    fn topics_that_cannot_be_read_are_named_with_their_keys() {
        let begin = "[ingest.kafka]\nbrokers = \"b:1\"\n";
        let orders = "[ingest.kafka.topics.orders]\ntopic = \"o\"\n";
        assert_eq!(said(&format!("{begin}{orders}")), "");
        for (text, expected) in [
            (
                "[ingest.kafka.topics.orders]\n",
                "ingest.kafka.topics.orders.topic: must be the name of a topic",
            ),
            (
                "topic = \"o\"\n[ingest.kafka.topics.orders]\ntopic = \"o\"\n",
                "ingest.kafka.topics.orders.topic: o is read by [ingest.kafka] already",
            ),
            (
                "[ingest.kafka.topics.a]\ntopic = \"o\"\n[ingest.kafka.topics.b]\ntopic = \"o\"\n",
                "ingest.kafka.topics.b.topic: o is read by [ingest.kafka.topics.a] already",
            ),
            (
                "[ingest.kafka.topics.orders]\ntopic = \"o\"\nmapping = \"none\"\n",
                "ingest.kafka.topics.orders.mapping: there is no [ingest.mappings.none]",
            ),
            (
                "[ingest.kafka.topics.orders]\ntopic = \"o\"\ntombstones = \"delete_node\"\nmapping = \"example\"\n",
                "ingest.kafka.topics.orders.tombstones: delete_node deletes",
            ),
            (
                "[ingest.kafka.topics.orders]\ntopic = \"o\"\nformat = \"avro\"\n",
                "ingest.kafka.topics.orders.format: avro and protobuf need the schemas",
            ),
            ("format = \"avro\"\n", "ingest.kafka.format: avro and protobuf need the schemas"),
            (
                "[ingest.kafka.registry]\nurl = \"registry:8081\"\n",
                "ingest.kafka.registry.url: must be as in",
            ),
            ("[ingest.kafka.registry]\nurl = \"http://a:b@c\"\n", "ingest.kafka.registry.url: must be as in"),
            (
                "[ingest.kafka.registry]\nusername = \"a\"\ntoken = \"b\"\n",
                "ingest.kafka.registry.token: must be empty where",
            ),
            ("[ingest.kafka.registry]\nurl = \"http://c\"\ntoken = \"b\"\n", "can be read on the way"),
            (
                "[ingest.kafka.topics.orders]\ntopicc = \"o\"\n",
                "ingest.kafka.topics.orders.topicc: there is no such setting",
            ),
            (
                "mapping = \"example\"\n[ingest.kafka.topics.orders]\ntopic = \"o\"\n",
                "ingest.kafka.mapping and ingest.kafka.tombstones are not used",
            ),
            (
                "dead_letter_topic = \"o\"\n[ingest.kafka.topics.orders]\ntopic = \"o\"\n",
                "dead letters of [ingest.kafka.topics.orders] go to o",
            ),
        ] {
            let said = said(&format!("{begin}{text}"));
            assert!(said.contains(expected), "{text}: {said}");
        }
        assert!(said(orders).contains("[ingest.kafka.topics] is not used"), "{}", said(orders));
    }
}
