//! `[ingest.mappings.NAME]`: how messages of another shape are read. The default file has one, `example`, whose words
//! and values are those of every other: what a mapping leaves out is what stands there.

use std::fmt;
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::topics::TOPICS;
use super::{Config, ConfigError, StreamTimeUnit, TopicSection};
use crate::ingest::mapping::{self, Deletes, Envelope, MappingOptions, TimeFormat};

/// The section of all mappings.
pub(super) const MAPPINGS: &str = "ingest.mappings";
/// The mapping of the default file.
pub(super) const EXAMPLE: &str = "example";

/// A mapping.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // every key is documented in the default file, which is the reference
pub struct Mapping {
    pub envelope: Envelope,
    pub each: String,
    pub src: String,
    pub dst: String,
    pub ts: String,
    pub ts_format: TimeFormat,
    pub ts_unit: StreamTimeUnit,
    pub op: String,
    #[serde(rename = "type")]
    pub edge_type: String,
    pub label: String,
    pub features: Texts,
    pub idempotency_key: String,
    pub deletes: Deletes,
}

impl Default for Mapping {
    fn default() -> Self {
        Self {
            envelope: Envelope::None,
            each: String::new(),
            src: "/src".to_owned(),
            dst: "/dst".to_owned(),
            ts: "/ts".to_owned(),
            ts_format: TimeFormat::Integer,
            ts_unit: StreamTimeUnit::Unspecified,
            op: String::new(),
            edge_type: String::new(),
            label: String::new(),
            features: Texts::default(),
            idempotency_key: String::new(),
            deletes: Deletes::DeadLetter,
        }
    }
}

/// A list of texts; in the environment and in flags one text, with blanks between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts(pub Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of texts")
    }
    fn visit_str<E>(self, text: &str) -> Result<Texts, E> {
        Ok(Texts(text.split_whitespace().map(str::to_owned).collect()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Texts, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = seq.next_element()? {
            texts.push(text);
        }
        Ok(Texts(texts))
    }
}

impl Mapping {
    /// The same for the module that reads messages.
    #[must_use]
    pub fn options(&self, stream_unit: StreamTimeUnit) -> MappingOptions {
        MappingOptions {
            envelope: self.envelope,
            each: self.each.clone(),
            src: self.src.clone(),
            dst: self.dst.clone(),
            ts: self.ts.clone(),
            ts_format: self.ts_format,
            ts_unit: self.ts_unit.into(),
            stream_unit: stream_unit.into(),
            op: self.op.clone(),
            edge_type: self.edge_type.clone(),
            label: self.label.clone(),
            idempotency_key: self.idempotency_key.clone(),
            features: self.features.0.clone(),
            deletes: self.deletes,
        }
    }
}

impl Config {
    /// The mapping that a source names; `None` where it names none.
    #[must_use]
    pub fn mapping(&self, name: &str) -> Option<Arc<mapping::Mapping>> {
        // Settings with a mapping that cannot be used are never handed out.
        let options = self.ingest.mappings.get(name)?.options(self.stream.time_unit);
        mapping::Mapping::compile(&options).ok().map(Arc::new)
    }

    /// The mapping that each source names, by the key in which it does.
    fn mapping_names(&self) -> Vec<(String, &str)> {
        let topics = self.ingest.kafka.topics.iter();
        let topics = topics.map(|(name, topic)| (format!("{TOPICS}.{name}.mapping"), topic.mapping.as_str()));
        let sources = [
            ("ingest.kafka.mapping", &self.ingest.kafka.mapping),
            ("ingest.http.mapping", &self.ingest.http.mapping),
            ("ingest.file.mapping", &self.ingest.file.mapping),
        ];
        sources.map(|(key, name)| (key.to_owned(), name.as_str())).into_iter().chain(topics).collect()
    }

    /// Mappings that cannot be used, and sources that name one that is not there.
    pub(super) fn mapping_faults(&self) -> Vec<ConfigError> {
        let mut faults = Vec::new();
        let mappings = self.ingest.mappings.keys().map(|name| (MAPPINGS, name));
        for (table, name) in mappings.chain(self.ingest.kafka.topics.keys().map(|name| (TOPICS, name))) {
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if name.is_empty() || !name.bytes().all(is_word) {
                let detail = "the name of such a section has letters, digits, - and _ only".to_owned();
                faults.push(ConfigError::Named { key: format!("{table}.{name}"), detail });
            }
        }
        for (name, mapping) in &self.ingest.mappings {
            if let Err(error) = mapping::Mapping::compile(&mapping.options(self.stream.time_unit)) {
                let key = format!("{MAPPINGS}.{name}.{}", error.key);
                faults.push(ConfigError::Named { key, detail: error.detail });
            }
        }
        for (key, name) in self.mapping_names() {
            if !name.is_empty() && !self.ingest.mappings.contains_key(name) {
                let known: Vec<&str> = self.ingest.mappings.keys().map(String::as_str).collect();
                let detail = format!(
                    "there is no [{MAPPINGS}.{name}]; write it, or one of {}, or nothing for plain events",
                    known.join(", ")
                );
                faults.push(ConfigError::Named { key, detail });
            }
        }
        faults
    }

    /// What is probably not meant.
    pub(super) fn mapping_warnings(&self) -> Vec<String> {
        let used: Vec<&str> = self.mapping_names().into_iter().map(|(_, name)| name).collect();
        let unused =
            self.ingest.mappings.keys().filter(|name| *name != EXAMPLE && !used.contains(&name.as_str()));
        let mut warnings: Vec<String> = unused
            .map(|name| {
                format!(
                    "[{MAPPINGS}.{name}] is used by no source; name it in ingest.kafka.mapping, a topic of [{TOPICS}], \
                     ingest.http.mapping or ingest.file.mapping"
                )
            })
            .collect();
        for TopicSection { section, settings } in self.ingest.kafka.all_topics() {
            let mapping = self.ingest.mappings.get(&settings.mapping);
            if mapping.is_some_and(|mapping| mapping.envelope == Envelope::Debezium)
                && settings.tombstones == super::Tombstones::DeadLetter
            {
                warnings.push(format!(
                    "{section}.tombstones = dead_letter, and Debezium sends a message without a value after each \
                     deletion: each will be a dead letter; set it to ignore"
                ));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("evergraph.toml");
        std::fs::write(&path, text).unwrap();
        let (faults, warnings) = Config::examine(Some(&path), &[]);
        let said = |fault: &super::super::Fault| {
            format!(
                "{}: {}{}",
                fault.key.as_deref().unwrap_or(""),
                fault.detail,
                fault.suggestion.as_deref().unwrap_or("")
            )
        };
        faults.iter().map(said).chain(warnings).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_example_shows_what_every_mapping_is_without_its_own_words() {
        let config = Config::default_settings().unwrap();
        assert_eq!(config.ingest.mappings.len(), 1);
        assert_eq!(config.ingest.mappings[EXAMPLE], Mapping::default());
        assert!(config.mapping(EXAMPLE).is_some() && config.mapping("").is_none());
    }

    #[test]
    fn mappings_are_checked_at_start_and_each_fault_is_named_with_its_key() {
        let begin = "[stream]\ntime_unit = \"milliseconds\"\n[ingest.kafka]\nmapping = \"orders\"\n";
        assert_eq!(fault(&format!("{begin}[ingest.mappings.orders]\nsrc = \"user:{{/after/user}}\"\n")), "");
        for (text, expected) in [
            ("", "ingest.kafka.mapping: there is no [ingest.mappings.orders]"),
            (
                "[ingest.mappings.orders]\nsrc = \"user\"\n",
                "ingest.mappings.orders.src: \"user\" names nothing",
            ),
            ("[ingest.mappings.orders]\nsrc = \"\"\n", "ingest.mappings.orders.src: must not be empty"),
            (
                "[ingest.mappings.orders]\nsrcc = \"/a\"\n",
                "ingest.mappings.orders.srcc: there is no such setting",
            ),
            ("[ingest.mappings.orders]\nenvelope = \"avro\"\n", "ingest.mappings.orders.envelope: "),
            (
                "[ingest.mappings.orders]\nfeatures = [\"a\"]\n",
                "ingest.mappings.orders.features: \"a\" names",
            ),
            (
                "[ingest.mappings.orders]\nts_format = \"rfc3339\"\nts_unit = \"seconds\"\n",
                "orders.ts_unit: has no",
            ),
            (
                "[ingest.mappings.orders]\n[ingest.mappings.more]\n",
                "[ingest.mappings.more] is used by no source",
            ),
            ("[ingest.mappings.orders]\nenvelope = \"debezium\"\n", "set it to ignore"),
        ] {
            let said = fault(&format!("{begin}{text}"));
            assert!(said.contains(expected), "{text}: {said}");
        }
        let said = fault(&format!("{begin}tombstones = \"delete_node\"\n[ingest.mappings.orders]\n"));
        assert!(said.contains("ingest.kafka.tombstones: delete_node deletes"), "{said}");
        let said = fault("[ingest.mappings.a]\nts_format = \"rfc3339\"\n");
        assert!(said.contains("ingest.mappings.a.ts_format: needs the unit"), "{said}");
    }

    #[test]
    fn features_are_a_list_or_a_text_with_blanks() {
        let read = |text: &str| serde_json::from_str::<Texts>(text).map(|texts| texts.0);
        assert_eq!(read("[\"/a b\", \"/c\"]").unwrap(), ["/a b", "/c"]);
        assert!(read("7").is_err());
        let flags = [("ingest.mappings.a.features".to_owned(), "/x /y".to_owned())];
        let config = Config::load(None, &flags).unwrap();
        assert_eq!(config.ingest.mappings["a"].features.0, ["/x", "/y"]);
    }
}
