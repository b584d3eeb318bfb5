//! Lists all faults of the settings; a start stops at the first.

use std::path::Path;

use config::{Environment, ValueKind};
use serde_json::Value;

use super::document::{self, Entry};
use super::layers::{Layer, PROPERTIES, detail_of, environment, named};
use super::mapping::EXAMPLE;
use super::{Config, ConfigError};

/// A fault of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The dotted key; `None` where a whole layer cannot be read.
    pub key: Option<String>,
    /// Where it stands: a file, the environment, a flag.
    pub place: String,
    /// What is wrong with it.
    pub detail: String,
    /// The known key that was probably meant.
    pub suggestion: Option<String>,
}

impl Config {
    /// All faults of these settings, and warnings about probable mistakes; the latter only without faults.
    #[must_use]
    pub fn examine(file: Option<&Path>, flags: &[(String, String)]) -> (Vec<Fault>, Vec<String>) {
        Self::examine_layers(file, environment(), flags)
    }

    pub(super) fn examine_layers(
        file: Option<&Path>,
        environment: Environment,
        flags: &[(String, String)],
    ) -> (Vec<Fault>, Vec<String>) {
        let (mut layers, mut faults) = (Vec::new(), Vec::new());
        for layer in Layer::all(file, environment, flags) {
            match layer {
                Ok(layer) => layers.push(layer),
                Err(error) => faults.push(of_layer(error)),
            }
        }
        let Some((usual, layers)) = layers.split_first() else { return (faults, Vec::new()) };
        let known = document::entries();
        // What is right by itself, so that what is wrong hides nothing of how the rest fits together.
        let mut sound: Vec<(&Layer, String, config::Value)> = Vec::new();
        for layer in layers {
            for (key, value) in layer.leaves() {
                match judge(usual, &known, &key, &value) {
                    Ok(()) => sound.push((layer, key, value)),
                    Err((detail, suggestion)) => {
                        let place = layer.name.clone();
                        faults.push(Fault { key: Some(key), place, detail, suggestion });
                    }
                }
            }
        }
        let overrides = sound.iter().map(|(_, key, value)| (key.as_str(), value));
        match over(usual, overrides) {
            Ok(config) => {
                faults.extend(config.faults().into_iter().map(|error| of_range(error, &sound)));
                let warnings = if faults.is_empty() { config.warnings() } else { Vec::new() };
                (faults, warnings)
            }
            Err(error) => {
                let place = "all layers together".to_owned();
                faults.push(Fault { key: None, place, detail: error.to_string(), suggestion: None });
                (faults, Vec::new())
            }
        }
    }
}

/// What is wrong with one value, whatever the others are.
fn judge(
    usual: &Layer,
    known: &[Entry],
    key: &str,
    value: &config::Value,
) -> Result<(), (String, Option<String>)> {
    if key.strip_prefix(PROPERTIES).is_some_and(|rest| rest.starts_with('.')) {
        return Ok(());
    }
    let of_named = named(key);
    if of_named.is_some_and(|(_, name)| !name.contains('.')) && matches!(value.kind, ValueKind::Table(_)) {
        return Ok(());
    }
    // Every section under a name has the keys of the example.
    let like = of_named.and_then(|(table, rest)| Some((table, rest.split_once('.')?.1)));
    let path = like.map_or_else(|| key.to_owned(), |(table, rest)| format!("{table}.{EXAMPLE}.{rest}"));
    match known.iter().find(|entry| entry.path == path) {
        None => Err(("there is no such setting".to_owned(), nearest(known, key))),
        Some(entry) if entry.is_section => {
            Err((format!("it is a section: write [{key}] and its keys below"), None))
        }
        Some(_) => over(usual, [(key, value)]).map(drop).map_err(|error| (detail_of(&error), None)),
    }
}

/// The default settings with these values in their places.
fn over<'a>(
    usual: &Layer,
    values: impl IntoIterator<Item = (&'a str, &'a config::Value)>,
) -> Result<Config, config::ConfigError> {
    let mut builder = config::Config::builder().add_source(usual.settings.clone());
    for (key, value) in values {
        // Names of properties may have dots of their own, and every value of them is right.
        if !key.starts_with(PROPERTIES) {
            builder = builder.set_override(key, value.clone())?;
        }
    }
    builder.build()?.try_deserialize()
}

/// The key that is called the same in another section, or the one that is written most alike.
fn nearest(known: &[Entry], key: &str) -> Option<String> {
    let name = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let keys = || known.iter().filter(|entry| !entry.is_section);
    if let Some(same) = keys().find(|entry| name(&entry.path) == name(key)) {
        return Some(same.path.clone());
    }
    let likeness = keys().map(|entry| (strsim::jaro_winkler(key, &entry.path), entry));
    let (likeness, entry) = likeness.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness > 0.85).then(|| entry.path.clone())
}

fn of_layer(error: ConfigError) -> Fault {
    match error {
        ConfigError::Unreadable { layer, detail, .. } => {
            let place = layer.trim_start_matches("settings (").trim_end_matches(')').to_owned();
            Fault { key: None, place, detail, suggestion: None }
        }
        other => {
            Fault { key: None, place: "settings".to_owned(), detail: other.to_string(), suggestion: None }
        }
    }
}

fn of_range(error: ConfigError, sound: &[(&Layer, String, config::Value)]) -> Fault {
    let (key, detail) = match error {
        ConfigError::OutOfRange { key, value, expected } => (key.to_owned(), format!("{value}: {expected}")),
        ConfigError::Named { key, detail } => (key, detail),
        other => return of_layer(other),
    };
    let setter = sound.iter().rev().find(|(_, set, _)| *set == key);
    let place = setter.map_or("the default settings", |(layer, ..)| &layer.name).to_owned();
    Fault { key: Some(key), place, detail, suggestion: None }
}

impl Fault {
    /// The same for programs.
    #[must_use]
    pub fn document(&self) -> Value {
        serde_json::json!({
            "key": self.key, "place": self.place, "detail": self.detail, "suggestion": self.suggestion,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examine(text: &str, variables: &[(&str, &str)]) -> (Vec<Fault>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("e.toml");
        std::fs::write(&path, text).unwrap();
        let variables = variables.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let environment = environment().source(Some(variables.collect()));
        Config::examine_layers(Some(&path), environment, &[])
    }

    #[test]
    fn every_fault_is_reported_with_its_place() {
        let text = "output = 3\n[learner]\nbatch_event = 64\nseed = \"many\"\n[api]\ndir = \"x\"\n[graph]\nshards = 3\n\
                    [ingest.kafka.properties]\n\"a.b\" = \"c\"\n";
        let (faults, warnings) = examine(text, &[("EVERGRAPH__CHECKPOINT__KEEP", "0")]);
        assert!(warnings.is_empty());
        let of = |key: &str| faults.iter().find(|fault| fault.key.as_deref() == Some(key)).unwrap();
        assert_eq!(of("learner.batch_event").suggestion.as_deref(), Some("learner.batch_events"));
        assert_eq!(of("api.dir").suggestion.as_deref(), Some("data.dir"));
        assert!(of("learner.seed").detail.contains("many"), "{faults:?}");
        assert!(of("graph.shards").detail.contains("a power of two"));
        assert!(of("graph.shards").place.ends_with("e.toml"));
        assert_eq!(of("checkpoint.keep").place, "the environment");
        assert!(of("output").detail.contains("[output]"));
        assert_eq!(faults.len(), 6, "{faults:?}");
    }

    #[test]
    fn a_file_that_is_no_toml_hides_nothing_of_the_rest() {
        let (faults, _) = examine("[learner\n", &[("EVERGRAPH__MODEL__HEADS", "0")]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].key.is_none() && faults[0].place.ends_with("e.toml"));
        assert_eq!(examine("", &[]), (Vec::new(), Vec::new()));
        assert_eq!(examine("[stream]\nlate_policy = \"drop\"\n", &[]).1.len(), 1);
    }
}
