//! Reload of settings while the daemon runs: those that can be taken over are, and the others that were changed are
//! named, until a start takes them over. A file with faults changes nothing.

use std::sync::Arc;

use anyhow::Result;
use parking_lot::Mutex;

use super::log_level;
use super::snapshot_settings::SharedSnapshotSettings;
use crate::api::{ChangedSetting, ReloadResponse};
use crate::config::{Config, Setting};

/// The settings that take effect without a start.
pub const RELOADED: [&str; 7] = [
    "output.level",
    "snapshot.log_bytes",
    "snapshot.interval_seconds",
    "snapshot.keep",
    "io.bytes_per_second_max",
    "log.retention_bytes",
    "log.retention_seconds",
];

/// Reads all layers of the settings anew.
pub type ReadSettings = Box<dyn Fn() -> Result<(Config, Vec<Setting>)> + Send + Sync>;

/// Reloads settings.
pub(super) struct Reloading {
    pub read: ReadSettings,
    /// The settings in effect.
    pub effective: Mutex<Vec<Setting>>,
    pub snapshots: Arc<SharedSnapshotSettings>,
}

impl Reloading {
    /// Takes over what can be.
    ///
    /// # Errors
    /// When the settings cannot be read or have faults.
    pub fn reload(&self) -> Result<ReloadResponse> {
        let mut effective = self.effective.lock();
        let (config, now) = (self.read)()?;
        let response = changes(&effective, &now);
        if response.applied.iter().any(|setting| setting.key == "output.level") {
            log_level::configure(&config.output.level)?;
        }
        self.snapshots.take(&config);
        effective.retain(|setting| !is_reloaded(&setting.key));
        effective.extend(now.into_iter().filter(|setting| is_reloaded(&setting.key)));
        let keys = |settings: &[ChangedSetting]| {
            settings.iter().map(|setting| setting.key.as_str()).collect::<Vec<_>>().join(", ")
        };
        if !response.waiting.is_empty() {
            let settings = keys(&response.waiting);
            tracing::warn!(settings, "changed settings take effect at the next start");
        }
        tracing::info!(settings = keys(&response.applied), level = config.output.level, "reloaded");
        Ok(response)
    }
}

fn is_reloaded(key: &str) -> bool {
    RELOADED.contains(&key)
}

/// What differs between two lists of settings.
fn changes(before: &[Setting], now: &[Setting]) -> ReloadResponse {
    let value = |settings: &[Setting], key: &str| {
        settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.clone())
    };
    let gone = before.iter().filter(|old| value(now, &old.key).is_none());
    let mut response = ReloadResponse::default();
    for Setting { key, .. } in now.iter().chain(gone) {
        let (before, now) = (value(before, key), value(now, key));
        if before != now {
            let (before, now) = (before.unwrap_or_default(), now.unwrap_or_default());
            let changed = ChangedSetting { key: key.clone(), before, now };
            if is_reloaded(key) { &mut response.applied } else { &mut response.waiting }.push(changed);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Origin;

    #[test]
    fn what_can_be_taken_over_and_what_waits_is_told_apart() {
        let settings = |values: &[(&str, Value)]| -> Vec<Setting> {
            let setting = |(key, value): &(&str, Value)| Setting {
                key: (*key).to_owned(),
                value: value.clone(),
                origin: Origin::File,
                place: String::new(),
            };
            values.iter().map(setting).collect()
        };
        let before = settings(&[
            ("output.level", json!("info")),
            ("log.retention_bytes", json!(0)),
            ("api.listen", json!("a")),
            ("ingest.kafka.properties.x", json!("1")),
        ]);
        let now = settings(&[
            ("output.level", json!("info")),
            ("log.retention_bytes", json!(9)),
            ("api.listen", json!("b")),
            ("ingest.kafka.properties.y", json!("2")),
        ]);
        let shown = |settings: Vec<ChangedSetting>| -> Vec<(String, Value, Value)> {
            settings.into_iter().map(|setting| (setting.key, setting.before, setting.now)).collect()
        };
        let ReloadResponse { applied, waiting } = changes(&before, &now);
        assert_eq!(shown(applied), [("log.retention_bytes".to_owned(), json!(0), json!(9))]);
        let expected = [
            ("api.listen".to_owned(), json!("a"), json!("b")),
            ("ingest.kafka.properties.y".to_owned(), Value::Null, json!("2")),
            ("ingest.kafka.properties.x".to_owned(), json!("1"), Value::Null),
        ];
        assert_eq!(shown(waiting), expected);
    }

    #[test]
    fn what_is_reloaded_exists() {
        let settings = Config::explain(None, &[]).unwrap();
        for key in RELOADED {
            assert!(settings.iter().any(|setting| setting.key == key), "{key}");
        }
    }
}
