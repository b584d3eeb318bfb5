//! `evergraph model`: the served versions of the weights and the decisions about them; promotes and rolls back by hand,
//! pauses and resumes training.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::client::{self, DaemonArgs, LiveArgs};
use super::{ConfigArgs, inspect, output, snapshot};
use crate::catalog::DecisionRow;
use crate::daemon::promotion;

/// `evergraph model`
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    command: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// List what the promotion gate and operators decided, latest first: versions, average precision of each, what is
    /// served
    List {
        /// Data directory of the daemon (data.dir); it may be running
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Most decisions to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        last: u32,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Publish a version of the weights from the next start on; the daemon must be stopped, or with --live it runs and
    /// publishes it at once. The version it replaces becomes the previous one. The gate continues: a candidate that is
    /// not behind is promoted with its next verdict
    Promote {
        /// Version of the weights, as listed by `model list`; it must be in a checkpoint. With --live it is the
        /// candidate, the previous version or the anchor; without a number, the candidate
        #[arg(value_name = "VERSION", required_unless_present = "live")]
        number: Option<u64>,
        #[command(flatten)]
        live: LiveArgs,
        /// The daemon's settings
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Publish the previous version again, from the next start on, and continue training from it; the daemon must be
    /// stopped, or with --live it runs and publishes it at once. Node memory is not restored
    Rollback {
        #[command(flatten)]
        live: LiveArgs,
        /// The daemon's settings
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Pause training: events are stored, remembered and served, and no weights are trained on them until `model
    /// resume`, also across restarts. Needs a key whose role is admin; without keys, run it on the daemon's machine
    Pause {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Resume paused training
    Resume {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// What a rollback does not do.
const MEMORY_STAYS: &str =
    "node memory was not restored: it holds every event, as the weights of their time wrote it";

/// Runs the command.
pub(super) fn run(args: &ModelArgs) -> Result<()> {
    let (data, last, json) = match &args.command {
        ModelCommand::List { data, last, json } => (data, last, json),
        ModelCommand::Promote { number, live, .. } if live.live => {
            return decide(&live.daemon, "promote", &json!({ "version": number }));
        }
        ModelCommand::Rollback { live, .. } if live.live => {
            decide(&live.daemon, "rollback", &json!({}))?;
            output::print_status(MEMORY_STAYS);
            return Ok(());
        }
        ModelCommand::Promote { number, config, .. } => {
            return print_decision(&promotion::promote(&config.load()?, number.unwrap_or_default())?);
        }
        ModelCommand::Rollback { config, .. } => {
            print_decision(&promotion::roll_back(&config.load()?)?)?;
            output::print_status(MEMORY_STAYS);
            return Ok(());
        }
        ModelCommand::Pause { daemon, json } => return hold(daemon, true, *json),
        ModelCommand::Resume { daemon, json } => return hold(daemon, false, *json),
    };
    let rows = inspect::open_catalog(data)?.decisions(*last)?;
    if *json {
        let rows: Vec<_> = rows.iter().map(document).collect();
        return output::print(&format!("{:#}", json!(rows)));
    }
    if rows.is_empty() {
        output::print_status("no decision yet; learner.gate.before_promotion is what is served");
        return Ok(());
    }
    output::print(table(&rows).trim_end())
}

/// Has a running daemon decide.
fn decide(daemon: &DaemonArgs, what: &str, body: &Value) -> Result<()> {
    let path = format!("/v1/admin/model/{what}");
    let stands = daemon.client(snapshot::PATIENCE)?.document(Method::POST, &path, Some(body))?;
    let before = in_place_of(stands["replaced_version"].as_u64());
    output::print(&format!("version {} is served, {before}", stands["model_version"]))
}

/// What a promotion or a rollback replaced.
fn in_place_of(replaced: Option<u64>) -> String {
    replaced.map_or("the first to be promoted".to_owned(), |version| format!("in place of version {version}"))
}

/// Has a running daemon pause or resume training.
fn hold(daemon: &DaemonArgs, paused: bool, as_json: bool) -> Result<()> {
    let client = daemon.client(client::PATIENCE)?;
    let stands = client.document(Method::PUT, "/v1/admin/training", Some(&json!({ "paused": paused })))?;
    if as_json {
        return output::print(&format!("{stands:#}"));
    }
    output::print(&match stands["by"].as_str() {
        Some(by) => {
            format!("training is paused by {by} until `evergraph model resume`, also across restarts")
        }
        None => "training is resumed".to_owned(),
    })
}

/// Prints a decision that was made by hand.
fn print_decision(row: &DecisionRow) -> Result<()> {
    let (served, before) = (row.served().unwrap_or_default(), in_place_of(row.published));
    output::print(&format!("version {served} is served from the next start on, {before}"))
}

fn document(row: &DecisionRow) -> serde_json::Value {
    json!({
        "verdict": row.verdict,
        "by_hand": row.by_hand(),
        "position": row.position,
        "served_version": row.served(),
        "candidate_version": row.candidate,
        "published_version": row.published,
        "previous_version": row.kept,
        "anchor_version": row.anchor,
        "candidate_average_precision": row.candidate_ap,
        "published_average_precision": row.published_ap,
        "previous_average_precision": row.kept_ap,
        "anchor_average_precision": row.anchor_ap,
        "edgebank_average_precision": row.edgebank_ap,
        "created_unix_ms": row.created_unix_ms,
    })
}

/// A line for each decision: a version, and in brackets its average precision. One that was made by hand has none.
fn table(rows: &[DecisionRow]) -> String {
    let mut out = format!(
        "{:<12} {:>12} {:>10} {:>20} {:>20} {:>20} {:>9}\n",
        "verdict", "position", "serves", "candidate", "published", "anchor", "edgebank"
    );
    for row in rows {
        let of = |version: Option<u64>, ap: Option<f64>| match (version, ap) {
            (Some(version), Some(ap)) => format!("{version} ({ap:.4})"),
            (Some(version), None) => version.to_string(),
            _ => "-".to_owned(),
        };
        let _ = writeln!(
            out,
            "{:<12} {:>12} {:>10} {:>20} {:>20} {:>20} {:>9}",
            row.verdict,
            row.position,
            row.served().map_or("-".to_owned(), |version| version.to_string()),
            of(Some(row.candidate), row.candidate_ap),
            of(row.published, row.published_ap),
            of(row.anchor, row.anchor_ap),
            row.edgebank_ap.map_or("by hand".to_owned(), |ap| format!("{ap:.4}")),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_versions_and_figures() {
        let row = DecisionRow {
            position: 12_800,
            verdict: "held".to_owned(),
            candidate: 64,
            published: Some(32),
            kept: None,
            candidate_ap: Some(0.5),
            published_ap: Some(0.91),
            kept_ap: None,
            anchor: None,
            anchor_ap: None,
            edgebank_ap: Some(0.7),
            created_unix_ms: 1,
        };
        let text = table(std::slice::from_ref(&row));
        let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["held", "12800", "32", "64", "(0.5000)", "32", "(0.9100)", "-", "0.7000"]);
        assert_eq!(
            (&document(&row)["served_version"], &document(&row)["by_hand"]),
            (&json!(32), &json!(false))
        );
        let by_hand = DecisionRow { candidate_ap: None, edgebank_ap: None, ..row };
        let text = table(std::slice::from_ref(&by_hand));
        assert!(text.trim_end().ends_with("-   by hand"), "{text}");
        assert_eq!(document(&by_hand)["candidate_average_precision"], json!(null));
    }
}
