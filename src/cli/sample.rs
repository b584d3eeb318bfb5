//! Real messages and rows as the events that they would be: `--sample` of `evergraph check`, `--dry-run` of
//! `evergraph ingest`. Where they cannot be read, a mapping to begin with is proposed. Stores nothing.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::output;
use crate::config::Config;
use crate::daemon::source_options::decode_options;
use crate::event::{Event, TimeUnit};
use crate::ingest::kafka::{KafkaSourceOptions, SampledMessage, newest, preflight};
use crate::ingest::mapping::{Decoded, Envelope, MappingOptions, TimeFormat, propose};
use crate::ingest::rejection::Rejection;
use crate::ingest::rows::{Row, Rows};

const BROKER_PATIENCE: Duration = Duration::from_secs(10);
/// Most events of one message that are shown, and most numbers of a feature row.
const SHOWN_MAX: usize = 5;

/// What became of the sample.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub events: usize,
    pub refused: usize,
}

/// Shows the newest messages of a topic of the settings.
pub(super) fn of_topic(section: &str, options: &KafkaSourceOptions, count: usize) -> Result<Outcome> {
    let ranges = preflight(options, BROKER_PATIENCE)?.partitions;
    let messages = newest(options, &ranges, count, BROKER_PATIENCE)?;
    if messages.is_empty() {
        output::print(&format!("msg   {}: there is none", options.topic))?;
    }
    let reader = options.reader();
    let mut outcome = Outcome::default();
    for message in &messages {
        let read = message.read(|message| reader.read(message));
        let read = read.unwrap_or_else(|| reader.tombstone(message.key.as_deref()));
        let place = format!("{} partition {} offset {}", options.topic, message.partition, message.offset);
        show(&place, read, &mut outcome)?;
    }
    if outcome.refused > 0 {
        propose_for(section, &messages.iter().map(|message| message.unwrapped(&reader)).collect::<Vec<_>>())?;
    }
    Ok(outcome)
}

/// Shows the first rows of a file.
pub(super) fn of_file(config: &Config, path: &Path, mapping: &str, count: usize) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut rows = match Rows::open(path, decode_options(config), config.mapping(mapping)) {
        Ok(rows) => rows,
        Err(error) => {
            outcome.refused += 1;
            output::print(&format!("row   {error}"))?;
            return Ok(outcome);
        }
    };
    let mut texts = Vec::new();
    for number in 0..count {
        let row: Row = match rows.next_row()? {
            Some(row) => row,
            None => break,
        };
        texts.push(rows.row_text());
        show(&format!("{} row {number}", path.display()), row, &mut outcome)?;
    }
    if outcome.refused > 0 {
        let messages = texts.into_iter().map(|text| SampledMessage {
            partition: 0,
            offset: 0,
            key: None,
            value: Some(text.into_bytes()),
            headers: Vec::new(),
        });
        propose_for("ingest.file", &messages.collect::<Vec<_>>())?;
    }
    Ok(outcome)
}

fn show(place: &str, read: Result<Decoded, Rejection>, outcome: &mut Outcome) -> Result<()> {
    match read {
        Err(rejection) => {
            outcome.refused += 1;
            output::print(&format!("no    {place}: {}", printable(&rejection.to_string())))
        }
        Ok(Decoded::Ignored) => output::print(&format!("skip  {place}: ignored by the settings")),
        Ok(decoded) => {
            let events: Vec<Event> = decoded.into_events().map(|incoming| incoming.event).collect();
            outcome.events += events.len();
            for event in events.iter().take(SHOWN_MAX) {
                output::print(&format!("event {place}: {}", printable(&describe(event))))?;
            }
            match events.len().checked_sub(SHOWN_MAX) {
                Some(more @ 1..) => output::print(&format!("      {place}: and {more} more events")),
                _ => Ok(()),
            }
        }
    }
}

pub(super) fn describe(event: &Event) -> String {
    match event {
        Event::Edge(edge) => {
            let mut text = format!("{} -> {} at {}", edge.src, edge.dst, edge.time);
            if let Some(name) = &edge.edge_type {
                let _ = write!(text, ", type {name}");
            }
            if let Some(label) = edge.label {
                let _ = write!(text, ", label {label}");
            }
            text + &row(&edge.features)
        }
        Event::Node { key, time, features } => format!("node {key} at {time}{}", row(features)),
        Event::DeleteEdge { src, dst, until: Some(until) } => format!("delete {src} -> {dst} up to {until}"),
        Event::DeleteEdge { src, dst, until: None } => format!("delete {src} -> {dst}"),
        Event::DeleteNode { key } => format!("delete node {key}"),
    }
}

/// A text of outside without characters that steer a terminal.
pub(super) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

fn row(features: &[f32]) -> String {
    if features.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = features.iter().take(SHOWN_MAX).map(f32::to_string).collect();
    let rest = if features.len() > SHOWN_MAX { ", …" } else { "" };
    format!(", {} features [{}{rest}]", features.len(), shown.join(", "))
}

/// Prints a mapping for what was seen, where one can be guessed.
fn propose_for(source: &str, messages: &[SampledMessage]) -> Result<()> {
    let proposed = messages.iter().find_map(|message| message.read(propose).flatten());
    let Some(options) = proposed else {
        return output::print(
            "hint  no mapping can be guessed from these: docs/mapping.md says how one is written",
        );
    };
    output::print("hint  a mapping to begin with; check each line:")?;
    output::print(settings(source, &options).trim_end())
}

/// A mapping as settings.
fn settings(source: &str, options: &MappingOptions) -> String {
    let mut text = String::new();
    if options.ts_format == TimeFormat::Rfc3339 || options.ts_unit.is_some() {
        let stream = options.stream_unit.or(options.ts_unit).unwrap_or(TimeUnit::Milliseconds);
        let _ = writeln!(text, "[stream]\ntime_unit = \"{}\"\n", stream.name());
    }
    let _ = writeln!(text, "[{source}]\nmapping = \"proposed\"\n\n[ingest.mappings.proposed]");
    match options.envelope {
        Envelope::None => {}
        Envelope::Debezium => text.push_str("envelope = \"debezium\"\n"),
        Envelope::CloudEvents => text.push_str("envelope = \"cloudevents\"\n"),
    }
    for (key, value) in [
        ("each", &options.each),
        ("src", &options.src),
        ("dst", &options.dst),
        ("ts", &options.ts),
        ("type", &options.edge_type),
        ("idempotency_key", &options.idempotency_key),
    ] {
        if !value.is_empty() {
            // A JSON text is a TOML text.
            let _ = writeln!(text, "{key} = {}", serde_json::Value::from(value.as_str()));
        }
    }
    if options.ts_format == TimeFormat::Rfc3339 {
        text.push_str("ts_format = \"rfc3339\"\n");
    } else if let Some(found) = options.ts_unit {
        let _ = writeln!(text, "ts_unit = \"{}\"", found.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_outside_steer_no_terminal() {
        let event = Event::DeleteNode { key: "a\u{1b}[2J\n\u{9b}é".into() };
        assert_eq!(printable(&describe(&event)), "delete node a\\u{1b}[2J\\n\\u{9b}é");
    }
}
