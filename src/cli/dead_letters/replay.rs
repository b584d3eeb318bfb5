//! Sends dead letters again: to the topic that they came from, or to the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use ureq::http::Method;

use super::super::client::{Client, DaemonArgs, PATIENCE};
use super::super::output;
use super::Letters;
use crate::config::Config;
use crate::daemon::source_options::client_options;
use crate::ingest::dead_letter::{DeadLetter, DeadLetterTopicOptions, DeadLetters, KeptLetter};

/// Letters that are sent before they are noted as sent.
const SENT_AT_A_TIME: usize = 1_000;
/// Longest wait for the broker to acknowledge those.
const BROKER_PATIENCE: Duration = Duration::from_secs(30);
/// How many letters go where.
fn targets(letters: &Letters, plan: &[usize]) -> BTreeMap<Arc<str>, usize> {
    plan.iter().filter_map(|&place| letters.at(place)).fold(BTreeMap::new(), |mut counts, kept| {
        *counts.entry(Arc::clone(&kept.letter.source)).or_default() += 1;
        counts
    })
}

/// Prints what would be sent, sends nothing and fails.
pub(super) fn explain(letters: &Letters, plan: &[usize], json: bool) -> Result<()> {
    let targets = targets(letters, plan);
    if json {
        output::print(&format!(
            "{:#}",
            json!({ "sent": 0, "would_send": plan.len(), "by_source": targets })
        ))?;
    } else {
        for (source, count) in &targets {
            output::print(&format!("{source}: {count} dead letters would be sent again"))?;
        }
    }
    bail!("nothing was sent; --yes sends {} dead letters again", plan.len())
}

/// Sends the letters at these places, and notes those that were taken.
pub(super) fn send(letters: &mut Letters, plan: &[usize], daemon: &DaemonArgs, json: bool) -> Result<()> {
    let (mut sent, mut refused) = (0, 0);
    for (source, _) in targets(letters, plan) {
        let own: Vec<usize> = plan
            .iter()
            .copied()
            .filter(|&place| letters.at(place).is_some_and(|kept| kept.letter.source == source))
            .collect();
        for places in own.chunks(SENT_AT_A_TIME) {
            let batch: Vec<KeptLetter> =
                places.iter().filter_map(|&place| letters.at(place)).cloned().collect();
            let taken = match source.strip_prefix("kafka:") {
                Some(topic) => to_topic(&letters.config, topic, &batch)?,
                None => to_daemon(&daemon.client(PATIENCE)?, &batch)?,
            };
            letters.kept.note_replayed(&letters.file, &taken)?;
            (sent, refused) = (sent + taken.len(), refused + batch.len() - taken.len());
            if !json {
                output::print_status(&format!("{source}: {sent} sent again, {refused} refused"));
            }
        }
    }
    if json {
        output::print(&format!("{:#}", json!({ "sent": sent, "refused": refused })))?;
    }
    ensure!(refused == 0, "{refused} dead letters were refused again and stay as they are");
    Ok(())
}

/// Sends letters to their topic and returns the ids of those that it took.
fn to_topic(config: &Config, topic: &str, letters: &[KeptLetter]) -> Result<Vec<String>> {
    let client = client_options(&config.ingest.kafka);
    ensure!(!client.brokers.is_empty(), "ingest.kafka.brokers is empty: where is the topic {topic}?");
    let options = DeadLetterTopicOptions { client, topic: topic.to_owned(), timeout: BROKER_PATIENCE };
    let bare: Vec<DeadLetter> = letters.iter().map(|kept| kept.letter.clone()).collect();
    let refused = DeadLetters::send_back(options, &bare)?;
    let taken = letters.iter().enumerate().filter(|(place, _)| !refused.contains(place));
    Ok(taken.map(|(_, kept)| kept.id.clone()).collect())
}

/// Pushes letters one by one and returns the ids of those that were taken.
fn to_daemon(client: &Client<'_>, letters: &[KeptLetter]) -> Result<Vec<String>> {
    let mut taken = Vec::new();
    for kept in letters {
        let payload = kept.letter.payload.as_deref().unwrap_or_default();
        let Ok(event) = serde_json::from_slice::<Value>(payload) else { continue };
        let (status, text) = client.text(Method::POST, "/v1/events", Some(&event), true)?;
        match status.as_u16() {
            200 => {
                let response: Value =
                    serde_json::from_str(&text).context("the daemon's response is not JSON")?;
                if response["rejected"].as_array().is_none_or(Vec::is_empty) {
                    taken.push(kept.id.clone());
                }
            }
            400 | 413 | 422 => {}
            _ => bail!(
                "{} returned {status}: {text}; {} were sent before",
                client.url("/v1/events"),
                taken.len()
            ),
        }
    }
    Ok(taken)
}
