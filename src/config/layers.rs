//! Where settings come from, one [`Layer`] for each origin, and how layers lie on one another.

use std::collections::BTreeMap;
use std::path::Path;

use config::{Environment, File, FileFormat, Source, Value, ValueKind};

use super::explain::Origin;
use super::mapping::MAPPINGS;
use super::property_map::Properties;
use super::topics::TOPICS;
use super::{Config, ConfigError, DEFAULT_FILE, document};

/// The one table whose keys are not ours.
pub(super) const PROPERTIES: &str = "ingest.kafka.properties";
/// The tables of sections under names that users choose, all with the keys of the example.
pub(super) const NAMED: [&str; 2] = [MAPPINGS, TOPICS];

/// Settings of one origin.
pub(super) struct Layer {
    pub name: String,
    pub origin: Origin,
    pub settings: config::Config,
}

/// The variables of the process.
pub(super) fn environment() -> Environment {
    Environment::with_prefix("EVERGRAPH").prefix_separator("__").separator("__")
}

/// Variables of the process that look like settings and are none, for want of an underscore: what to write instead.
#[must_use]
pub fn ignored_variables() -> Vec<String> {
    ignored(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn ignored(names: impl Iterator<Item = String>) -> Vec<String> {
    let keys: Vec<_> = document::entries().into_iter().filter(|entry| !entry.is_section).collect();
    let meant = |name: String| {
        let rest = name.strip_prefix("EVERGRAPH_").filter(|rest| !rest.starts_with('_'))?;
        let rest = rest.to_lowercase().replace("__", "_");
        let key = keys.iter().find(|key| key.path.replace('.', "_") == rest)?;
        let right = key.path.to_uppercase().replace('.', "__");
        Some(format!("the environment variable {name} is not read: {} is EVERGRAPH__{right}", key.path))
    };
    names.filter_map(meant).collect()
}

impl Layer {
    /// Every layer, the lowest first, or why it cannot be read.
    pub fn all(
        file: Option<&Path>,
        environment: Environment,
        flags: &[(String, String)],
    ) -> Vec<Result<Self, ConfigError>> {
        let mut layers = vec![Self::default_file()];
        if let Some(path) = file {
            layers.push(Self::read_file(path));
        }
        layers.push(Self::read("the environment", Origin::Environment, environment));
        layers.extend(flags.iter().map(|(key, value)| Self::flag(key, value)));
        layers
    }

    /// The default settings.
    pub fn default_file() -> Result<Self, ConfigError> {
        let text = File::from_str(DEFAULT_FILE, FileFormat::Toml);
        Self::read("the default settings", Origin::Default, text)
    }

    fn read(
        name: &str,
        origin: Origin,
        source: impl Source + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        let settings = config::Config::builder().add_source(source).build();
        let settings = settings.map_err(|error| unreadable(name, &error))?;
        Ok(Self { name: name.to_owned(), origin, settings })
    }

    /// Reads the file itself: what is not UTF-8 is refused here, and would be mended in silence there.
    fn read_file(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
            layer: format!("settings ({name})"),
            detail: error.to_string(),
            suggestion: String::new(),
        })?;
        Self::read(&name, Origin::File, File::from_str(&text, FileFormat::Toml))
    }

    fn flag(key: &str, value: &str) -> Result<Self, ConfigError> {
        let name = match key {
            "api.listen" => "the flag --listen".to_owned(),
            "data.dir" => "the flag --data".to_owned(),
            key => format!("the flag --set {key}"),
        };
        let builder = config::Config::builder().set_override(key, value);
        let settings = builder.and_then(|builder| builder.build());
        let settings = settings.map_err(|error| unreadable(&name, &error))?;
        Ok(Self { name, origin: Origin::Flag, settings })
    }

    /// The properties that it passes on to Kafka's client, by their dotted names.
    pub fn properties(&self) -> Result<BTreeMap<String, String>, ConfigError> {
        match self.settings.get::<Properties>(PROPERTIES) {
            Ok(found) => Ok(found.0),
            Err(config::ConfigError::NotFound(_)) => Ok(BTreeMap::new()),
            Err(error) => Err(unreadable(&self.name, &error)),
        }
    }

    /// Every value in it with its dotted key, in the order of the keys.
    pub fn leaves(&self) -> BTreeMap<String, Value> {
        let mut leaves = BTreeMap::new();
        for (key, value) in self.settings.collect().unwrap_or_default() {
            gather(key, value, &mut leaves);
        }
        leaves
    }
}

fn gather(path: String, value: Value, leaves: &mut BTreeMap<String, Value>) {
    match value.kind {
        // A mapping without a word of its own is one all the same.
        ValueKind::Table(table) if !is_named(&path) || !table.is_empty() => {
            table.into_iter().for_each(|(key, inner)| gather(format!("{path}.{key}"), inner, leaves));
        }
        _ => drop(leaves.insert(path, value)),
    }
}

/// The table of named sections in which a key stands, and what stands behind its name.
pub(super) fn named(key: &str) -> Option<(&'static str, &str)> {
    NAMED.iter().find_map(|table| Some((*table, key.strip_prefix(table)?.strip_prefix('.')?)))
}

fn is_named(path: &str) -> bool {
    named(path).is_some_and(|(_, name)| !name.contains('.'))
}

/// The layers on top of one another.
pub(super) fn merged(layers: &[Layer]) -> Result<Config, config::ConfigError> {
    let mut builder = config::Config::builder();
    for layer in layers {
        builder = builder.add_source(layer.settings.clone());
    }
    builder.build()?.try_deserialize()
}

/// The error of the first layer that spoils what lies below it.
pub(super) fn blame(layers: &[Layer], whole: &config::ConfigError) -> ConfigError {
    let spoiled = (1..=layers.len()).find_map(|count| Some((count, merged(&layers[..count]).err()?)));
    match spoiled {
        Some((count, error)) => unreadable(&layers[count - 1].name, &error),
        None => unreadable("all layers together", whole),
    }
}

pub(super) fn unreadable(layer: &str, error: &config::ConfigError) -> ConfigError {
    let detail = detail_of(error);
    let suggestion = suggest(&detail).unwrap_or_default();
    ConfigError::Unreadable { layer: format!("settings ({layer})"), detail, suggestion }
}

/// What is wrong with a value. Where it had to be one of some words, those are named.
pub(super) fn detail_of(error: &config::ConfigError) -> String {
    let said = error.to_string();
    let behind = said.split_once(" does not have variant constructor ").map(|(_, behind)| behind);
    let Some((word, place)) = behind.and_then(|behind| behind.split_once(" for key `")) else { return said };
    match super::schema::words_of(place.split('`').next().unwrap_or_default()) {
        Some(words) => format!("`{word}` is none of {} for key `{place}", words.join(", ")),
        None => said,
    }
}

/// Finds `unknown field `x`, expected one of `a`, `b`` in a message and names the nearest.
fn suggest(message: &str) -> Option<String> {
    let mut quoted = message.split("unknown field `").nth(1)?.split('`');
    let unknown = quoted.next()?;
    let nearest = quoted
        .skip(1)
        .step_by(2)
        .map(|known| (strsim::jaro_winkler(unknown, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (nearest.0 > 0.7).then(|| format!("; did you mean `{}`?", nearest.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_lack_an_underscore_are_named() {
        let of = |name: &str| ignored(std::iter::once(name.to_owned()));
        for name in ["EVERGRAPH_LEARNER__BATCH_EVENTS", "EVERGRAPH_LEARNER_BATCH_EVENTS"] {
            let said = of(name);
            assert!(
                matches!(&said[..], [only] if only.contains("EVERGRAPH__LEARNER__BATCH_EVENTS")),
                "{said:?}"
            );
        }
        for name in
            ["EVERGRAPH__LEARNER__BATCH_EVENTS", "EVERGRAPH_URL", "EVERGRAPH_PORT", "LEARNER_BATCH_EVENTS"]
        {
            assert_eq!(of(name), Vec::<String>::new(), "{name}");
        }
    }
}
