//! `evergraph config`: the settings in effect, their faults, and the schema of a settings file.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::client::{DaemonArgs, PATIENCE};
use super::{ConfigArgs, output};
use crate::config::{Config, ConfigError, Origin, Setting, ignored_variables, json_schema};

/// `evergraph config`
#[derive(Debug, Args)]
pub(crate) struct SettingsArgs {
    #[command(subcommand)]
    command: SettingsCommand,
}

#[derive(Debug, Subcommand)]
enum SettingsCommand {
    /// Print the settings in effect, each with where it comes from: the default file, the file of --config, the
    /// environment or a flag, of which the later win. What is printed is a settings file itself, but for secrets, which
    /// are never shown
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Omit settings with their default value
        #[arg(long)]
        changed: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List all faults of the settings: unknown keys with suggestions, wrong types, values out of range, and conflicts.
    /// Exits with 78 if there are any. Checks the settings only; `evergraph check` also probes disk, device and broker
    Validate {
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Have a running daemon read its settings again, as SIGHUP does: it takes over those that can change while it
    /// runs, and reports which changed ones wait for a start. Needs a key whose role is admin; without keys, run it on
    /// the daemon's machine
    Reload {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a JSON Schema of the settings file, for editors and for checks before a roll-out
    Schema,
}

/// Runs the command.
pub(super) fn run(args: &SettingsArgs) -> Result<()> {
    match &args.command {
        SettingsCommand::Show { config, changed, json } => show(config, *changed, *json),
        SettingsCommand::Validate { config, json } => validate(config, *json),
        SettingsCommand::Reload { daemon, json } => reload(daemon, *json),
        SettingsCommand::Schema => output::print(&format!("{:#}", json_schema()?)),
    }
}

fn reload(daemon: &DaemonArgs, json: bool) -> Result<()> {
    let changes = daemon.client(PATIENCE)?.document(Method::POST, "/v1/admin/reload", None)?;
    if json {
        return output::print(&format!("{changes:#}"));
    }
    let mut text = String::new();
    for (list, what) in [("applied", "in effect"), ("waiting", "waits for a start")] {
        for setting in changes[list].as_array().into_iter().flatten() {
            let key = setting["key"].as_str().unwrap_or("?");
            text += &format!("{key}: {} -> {}, {what}\n", setting["before"], setting["now"]);
        }
    }
    output::print(if text.is_empty() { "nothing has changed" } else { text.trim_end() })
}

fn show(args: &ConfigArgs, changed: bool, json: bool) -> Result<()> {
    let mut settings = Config::explain(args.config.as_deref(), &args.flags()?)?;
    settings.retain(|setting| !changed || setting.origin != Origin::Default);
    if json {
        let document: Vec<Value> = settings.iter().map(document).collect();
        return output::print(&format!("{:#}", json!(document)));
    }
    output::print(file(&settings).trim_end())
}

fn document(setting: &Setting) -> Value {
    json!({
        "key": setting.key, "value": setting.value, "origin": setting.origin.name(), "place": setting.place,
    })
}

/// The settings as a settings file: values in their sections, and behind each where it comes from.
fn file(settings: &[Setting]) -> String {
    let mut out = String::new();
    let mut section = None;
    for setting in settings {
        let (of, name) = split(&setting.key);
        if section != Some(of) {
            out += &format!("{}[{of}]\n", if section.is_some() { "\n" } else { "" });
            section = Some(of);
        }
        let name = if name.contains('.') { format!("{name:?}") } else { name.to_owned() };
        let line = format!("{name} = {}", literal(&setting.value));
        let place = if setting.origin == Origin::Default { "default" } else { &setting.place };
        out += &format!("{line:<44} # {place}\n");
    }
    out
}

/// The section of a key, and its name in there. Names of properties of Kafka's client have dots.
fn split(key: &str) -> (&str, &str) {
    const PROPERTIES: &str = "ingest.kafka.properties";
    match key.strip_prefix(PROPERTIES).and_then(|rest| rest.strip_prefix('.')) {
        Some(name) => (PROPERTIES, name),
        None => key.rsplit_once('.').unwrap_or(("", key)),
    }
}

/// A value as TOML writes it, which for these kinds is how JSON does, but for one character.
fn literal(value: &Value) -> String {
    value.to_string().replace('\u{7f}', "\\u007F")
}

fn validate(args: &ConfigArgs, json: bool) -> Result<()> {
    let (faults, mut warnings) = Config::examine(args.config.as_deref(), &args.flags()?);
    warnings.extend(ignored_variables());
    if json {
        let documents: Vec<Value> = faults.iter().map(crate::config::Fault::document).collect();
        let document = json!({ "valid": faults.is_empty(), "faults": documents, "warnings": warnings });
        output::print(&format!("{document:#}"))?;
    } else {
        for fault in &faults {
            let key = fault.key.as_ref().map(|key| format!("{key} ")).unwrap_or_default();
            let meant = fault.suggestion.as_ref().map(|known| format!("; did you mean {known}?"));
            let (place, detail) = (&fault.place, &fault.detail);
            output::print(&format!("FAULT {key}({place}): {detail}{}", meant.unwrap_or_default()))?;
        }
        for warning in &warnings {
            output::print(&format!("warn  {warning}"))?;
        }
        if faults.is_empty() {
            output::print("ok    the settings are valid")?;
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(ConfigError::Faults { count: faults.len() }.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_a_settings_file() {
        let setting = |key: &str, value: Value, origin| Setting {
            key: key.to_owned(),
            value,
            origin,
            place: "e.toml".to_owned(),
        };
        let settings = [
            setting("api.listen", json!("a\"b\u{7f}"), Origin::Default),
            setting("ingest.kafka.properties.sasl.username", json!("me"), Origin::File),
            setting("learner.gate.edgebank_tolerance", json!(0.02), Origin::Default),
        ];
        let text = file(&settings);
        let lines: Vec<&str> = text.lines().map(|line| line.split("  ").next().unwrap()).collect();
        assert_eq!(lines[..2], ["[api]", "listen = \"a\\\"b\\u007F\""]);
        assert_eq!(lines[3..5], ["[ingest.kafka.properties]", "\"sasl.username\" = \"me\""]);
        assert_eq!(lines[6..], ["[learner.gate]", "edgebank_tolerance = 0.02"]);
        assert!(text.contains("# default") && text.contains("# e.toml"), "{text}");
    }
}
