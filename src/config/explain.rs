//! The settings in effect, each with its origin.

use std::collections::BTreeSet;
use std::path::Path;

use config::Environment;
use serde_json::Value;

use super::layers::{Layer, NAMED, PROPERTIES, environment};
use super::mapping::EXAMPLE;
use super::{Config, ConfigError, document};
use crate::ingest::kafka::KafkaClientOptions;

/// Origins of a value, in order of precedence, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The default file.
    Default,
    /// The file of `--config`.
    File,
    /// A variable of the environment.
    Environment,
    /// A flag.
    Flag,
}

impl Origin {
    /// One word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
            Self::Flag => "flag",
        }
    }
}

/// A setting in effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its dotted key.
    pub key: String,
    /// Its value as it was written, and `***` where that is a secret.
    pub value: Value,
    /// What kind of origin it has.
    pub origin: Origin,
    /// Which one: the file, the variable or the flag.
    pub place: String,
}

impl Config {
    /// Every setting in effect, in the order of the default file; properties of Kafka's client behind their section.
    ///
    /// # Errors
    /// As [`load`](Self::load): settings that cannot be used are not in effect.
    pub fn explain(file: Option<&Path>, flags: &[(String, String)]) -> Result<Vec<Setting>, ConfigError> {
        Self::explain_layers(file, environment(), flags)
    }

    pub(super) fn explain_layers(
        file: Option<&Path>,
        environment: Environment,
        flags: &[(String, String)],
    ) -> Result<Vec<Setting>, ConfigError> {
        Self::from_layers(file, environment.clone(), flags)?;
        let layers = Layer::all(file, environment, flags).into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut settings = Vec::new();
        for entry in document::entries() {
            if entry.path == PROPERTIES {
                settings.extend(properties(&layers)?);
            } else if !entry.is_section {
                settings.extend(setting(&layers, &entry.path));
            }
            if NAMED.contains(&entry.path.as_str()) {
                settings.extend(named(&layers, &entry.path).iter().filter_map(|key| setting(&layers, key)));
            }
        }
        Ok(settings)
    }
}

/// Settings whose values are secrets.
const SECRETS: [&str; 2] = ["ingest.kafka.registry.password", "ingest.kafka.registry.token"];

fn setting(layers: &[Layer], key: &str) -> Option<Setting> {
    let found = |layer: &Layer| layer.settings.get::<Value>(key).ok();
    let usual = layers.first().and_then(found);
    let (layer, value) = layers.iter().rev().find_map(|layer| Some((layer, found(layer)?)))?;
    let value = match (value, usual) {
        (Value::String(text), _) if SECRETS.contains(&key) && !text.is_empty() => "***".into(),
        (Value::String(text), Some(usual)) => typed_like(&usual, text),
        (value, _) => value,
    };
    let place = place(layer, key);
    Some(Setting { key: key.to_owned(), value, origin: layer.origin, place })
}

/// The keys of all sections of a table but the one of the default file.
fn named(layers: &[Layer], table: &str) -> BTreeSet<String> {
    let keys = layers.iter().flat_map(|layer| layer.leaves().into_keys());
    let example = format!("{table}.{EXAMPLE}.");
    keys.filter(|key| key.starts_with(&format!("{table}.")) && !key.starts_with(&example)).collect()
}

/// The environment and flags write everything as text.
fn typed_like(usual: &Value, text: String) -> Value {
    let read = serde_json::from_str::<Value>(text.trim()).ok();
    let same_kind = |value: &Value| match usual {
        Value::Bool(_) => value.is_boolean(),
        Value::Number(_) => value.is_number(),
        _ => false,
    };
    read.filter(same_kind).unwrap_or(Value::String(text))
}

fn properties(layers: &[Layer]) -> Result<Vec<Setting>, ConfigError> {
    let (mut client, mut origins) = (KafkaClientOptions::new(""), std::collections::BTreeMap::new());
    for layer in layers {
        for (name, value) in layer.properties()? {
            origins.insert(name.clone(), layer);
            client.properties.insert(name, value);
        }
    }
    let shown = client.redacted().into_iter().filter_map(|(name, value)| {
        let (layer, key) = (origins.get(&name)?, format!("{PROPERTIES}.{name}"));
        let place = place(layer, &key);
        Some(Setting { key, value: Value::String(value), origin: layer.origin, place })
    });
    Ok(shown.collect())
}

fn place(layer: &Layer, key: &str) -> String {
    match layer.origin {
        Origin::Environment => format!("EVERGRAPH__{}", key.to_ascii_uppercase().replace('.', "__")),
        _ => layer.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_of_a_value_is_the_last_that_sets_it_and_secrets_stay_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        let text =
            "[learner]\nseed = 1\nbatch_events = 7\n[ingest.kafka.properties]\n\"sasl.password\" = \"a\"\n";
        std::fs::write(&path, text).unwrap();
        let variables = [
            ("EVERGRAPH__LEARNER__SEED", "2"),
            ("EVERGRAPH__LEARNER__TRAIN", "false"),
            ("EVERGRAPH__INGEST__KAFKA__TOPIC", "007"),
            ("EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__PASSWORD", "hunter2"),
            ("EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__USERNAME", "me"),
            ("EVERGRAPH__INGEST__KAFKA__REGISTRY__TOKEN", "hunter2"),
        ];
        let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let environment = environment().source(Some(variables.into_iter().collect()));
        let flags = [("api.listen".to_owned(), "localhost:0".to_owned())];
        let settings = Config::explain_layers(Some(&path), environment, &flags).unwrap();
        let of = |key: &str| {
            let found = settings.iter().find(|setting| setting.key == key);
            let found = found.unwrap_or_else(|| panic!("no {key}"));
            (found.value.to_string(), found.origin.name(), found.place.clone())
        };
        let setting = |value: &str, origin, place: &str| (value.to_owned(), origin, place.to_owned());
        assert_eq!(of("api.listen"), setting("\"localhost:0\"", "flag", "the flag --listen"));
        assert_eq!(of("learner.seed"), setting("2", "environment", "EVERGRAPH__LEARNER__SEED"));
        assert_eq!(of("learner.train").0, "false");
        assert_eq!(of("learner.batch_events"), setting("7", "file", &path.display().to_string()));
        assert_eq!(of("ingest.kafka.topic").0, "\"007\"", "text stays text");
        assert_eq!(of("model.fanout"), setting("10", "default", "the default settings"));
        let secret = "EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__PASSWORD";
        assert_eq!(of("ingest.kafka.properties.sasl.password"), setting("\"***\"", "environment", secret));
        assert_eq!(of("ingest.kafka.properties.sasl.username").0, "\"me\"");
        assert_eq!(of("ingest.kafka.registry.token").0, "\"***\"");
        assert_eq!(of("ingest.kafka.registry.password").0, "\"\"");
        assert!(!format!("{settings:?}").contains("hunter2"));
        let keys = document::entries().into_iter().filter(|entry| !entry.is_section).count();
        assert_eq!(settings.len(), keys + 2, "all of them");
    }
}
