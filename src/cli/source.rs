//! `evergraph source`: show, pause and resume sources; move a Kafka source to another position; set back the clock.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::client::{DaemonArgs, LiveArgs, PATIENCE};
use super::{ConfigArgs, output};
use crate::daemon::clock_correction::correct_clock;
use crate::daemon::seek::{self, Seek, Target};
use crate::event::EventTime;
use crate::ingest::http_client::path_segment;

/// Longest wait for a seek of a running daemon.
const SEEK_PATIENCE: Duration = Duration::from_secs(120);

const MAY_BE_LATE: &str =
    "events that are read again may be late: stream.allowed_lateness and stream.late_policy apply";

/// `evergraph source`
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    #[command(subcommand)]
    command: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// Show each source of a running daemon: state, counts of its events, position and lag of each partition, and who
    /// paused it
    Describe {
        /// Name of a source; all without it
        #[arg(value_name = "SOURCE")]
        source: Option<String>,
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Pause a source: it reads nothing new until `source resume`, also across restarts. What it has read is stored; a
    /// Kafka source stays in its group; pushes get 503. Needs a key whose role is admin; without keys, run it on the
    /// daemon's machine
    Pause {
        /// Name of the source, as listed by `source describe`
        #[arg(value_name = "SOURCE")]
        source: String,
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Resume a paused source
    Resume {
        /// Name of the source, as listed by `source describe`
        #[arg(value_name = "SOURCE")]
        source: String,
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Move a Kafka source to another position: of a stopped daemon from its next start on, or with --live of a
    /// running one, whose source is paused or has failed. Forward, messages are skipped for good; backward, they are
    /// read again, and their events are stored and learned twice unless they carry idempotency keys that are still
    /// remembered. Without --yes it prints the plan, changes nothing and fails
    Seek {
        /// Name of the source, such as kafka:payments; needed where the daemon reads several topics
        #[arg(value_name = "SOURCE")]
        source: Option<String>,
        /// Where to continue: earliest, latest, offset:N, or time:MS, the first message that is no older (milliseconds
        /// since the Unix epoch)
        #[arg(long, value_name = "WHERE", value_parser = where_to)]
        to: String,
        /// Only this partition; all without it
        #[arg(long, value_name = "N")]
        partition: Option<i32>,
        /// Apply the seek
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        live: LiveArgs,
        /// The stopped daemon's settings
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Set back where in time the stream stands, after many events with a wrong time have moved it ahead; the daemon
    /// must be stopped. Requests without a time, the watermark and retention follow it from the next start on; the
    /// events stay. Without --yes it prints the plan, changes nothing and fails
    Clock {
        /// Later times than this do not count where they belong to edges that are in the log now, in the stream's unit
        #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
        not_after: i64,
        /// Apply it
        #[arg(long)]
        yes: bool,
        /// The daemon's settings
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

fn where_to(text: &str) -> Result<String, &'static str> {
    Target::from_str(text).map(|_| text.to_owned())
}

/// Runs the command.
pub(super) fn run(args: &SourceArgs) -> Result<()> {
    match &args.command {
        SourceCommand::Describe { source, daemon, json } => describe(source.as_deref(), daemon, *json),
        SourceCommand::Pause { source, daemon, json } => hold(source, true, daemon, *json),
        SourceCommand::Resume { source, daemon, json } => hold(source, false, daemon, *json),
        SourceCommand::Seek { source, to, partition, yes, live, json, .. } if live.live => {
            seek_live(source.as_deref(), (to, *partition), *yes, &live.daemon, *json)
        }
        SourceCommand::Seek { source, to, partition, yes, config, json, .. } => {
            let to = Target::from_str(to).map_err(anyhow::Error::msg)?;
            seek(source.as_deref(), (to, *partition), *yes, config, *json)
        }
        SourceCommand::Clock { not_after, yes, config, json } => clock(*not_after, *yes, config, *json),
    }
}

fn describe(wanted: Option<&str>, daemon: &DaemonArgs, json: bool) -> Result<()> {
    let status = daemon.client(PATIENCE)?.document(Method::GET, "/v1/status", None)?;
    let mut sources = with_positions(&status["ingest"]);
    if let Some(wanted) = wanted {
        let known: Vec<String> = sources.iter().map(|source| word(&source["name"]).to_owned()).collect();
        sources.retain(|source| source["name"] == wanted);
        ensure!(!sources.is_empty(), "no source has the name {wanted}; there are {}", known.join(", "));
    }
    if json {
        return output::print(&format!("{:#}", json!(sources)));
    }
    if sources.is_empty() {
        output::print_status(
            "no source is running: the daemon is starting or stopping, or none is configured",
        );
        return Ok(());
    }
    let text: Vec<String> = sources.iter().map(describe_one).collect();
    output::print(text.join("\n").trim_end())
}

/// Each source with the positions of its partitions.
fn with_positions(ingest: &Value) -> Vec<Value> {
    let positions = ingest["positions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |source: &Value| -> Vec<Value> {
        let own = positions.iter().filter(|position| position["source"] == source["name"]);
        let position = |position: &Value| {
            let partition = &position["partition"];
            let lag = &source["lag_records"][partition.to_string()];
            json!({ "partition": partition, "next_offset": position["next_offset"], "lag_records": lag })
        };
        own.map(position).collect()
    };
    let sources = ingest["sources"].as_array().into_iter().flatten();
    let whole = sources.map(|source| {
        let mut whole = source.clone();
        whole["partitions"] = of(source).into();
        if let Some(fields) = whole.as_object_mut() {
            fields.remove("lag_records");
        }
        whole
    });
    whole.collect()
}

fn describe_one(source: &Value) -> String {
    let mut out = format!("{}: {}", word(&source["name"]), word(&source["state"]));
    if let Some(detail) = source["detail"].as_str().filter(|detail| !detail.is_empty()) {
        let _ = write!(out, ", {detail}");
    }
    let count = |name: &str| source[name].as_u64().unwrap_or(0);
    let _ = write!(
        out,
        "\n  events     {} received, {} accepted, {} duplicate, {} rejected ({} dead letters), \
         {} ignored\n  late       {} accepted, {} dropped\n",
        count("received_events"),
        count("accepted_events"),
        count("duplicate_events"),
        count("rejected_events"),
        count("dead_letters"),
        count("ignored_events"),
        count("late_accepted_events"),
        count("late_dropped_events"),
    );
    for position in source["partitions"].as_array().into_iter().flatten() {
        let lag = position["lag_records"].as_i64().map_or_else(|| "-".to_owned(), |lag| lag.to_string());
        let (partition, next) = (&position["partition"], &position["next_offset"]);
        let _ = writeln!(out, "  partition  {partition} at offset {next}, lag {lag}");
    }
    out
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn hold(source: &str, paused: bool, daemon: &DaemonArgs, json: bool) -> Result<()> {
    let path = format!("/v1/admin/sources/{}", path_segment(source));
    let stands = daemon.client(PATIENCE)?.document(Method::PUT, &path, Some(&json!({ "paused": paused })))?;
    if json {
        return output::print(&format!("{stands:#}"));
    }
    output::print(&match stands["by"].as_str() {
        Some(by) => format!(
            "{source} is paused by {by} until `evergraph source resume {source}`, also across restarts"
        ),
        None => format!("{source} is resumed"),
    })
}

fn seek(
    source: Option<&str>,
    (to, partition): (Target, Option<i32>),
    yes: bool,
    config: &ConfigArgs,
    json: bool,
) -> Result<()> {
    let config = config.load()?;
    let planned = Seek::plan(&config, source, to, partition).context("the source cannot be moved there")?;
    let (source, steps) = (planned.plan.source().to_owned(), planned.plan.steps().to_vec());
    if yes && !steps.is_empty() {
        planned.carry_out()?;
    }
    let document = seek::response(&source, yes, &steps);
    if steps.iter().any(|step| step.read_again() > 0) && config.stream.allowed_lateness >= 0 {
        output::print_status(MAY_BE_LATE);
    }
    report(&serde_json::to_value(document)?, json)
}

/// Has a running daemon move a Kafka source.
fn seek_live(
    source: Option<&str>,
    (to, partition): (&str, Option<i32>),
    yes: bool,
    daemon: &DaemonArgs,
    json: bool,
) -> Result<()> {
    let client = daemon.client(SEEK_PATIENCE)?;
    let status = client.document(Method::GET, "/v1/status", None)?;
    let names =
        status["ingest"]["sources"].as_array().into_iter().flatten().map(|source| word(&source["name"]));
    let topics: Vec<String> = names.filter(|name| name.starts_with("kafka:")).map(str::to_owned).collect();
    ensure!(!topics.is_empty(), "the daemon reads no topic of Kafka: only a Kafka source can seek");
    let source = seek::one_of(source, &topics)?;
    let path = format!("/v1/admin/sources/{}/seek", path_segment(&source));
    let body = json!({ "to": to, "partition": partition, "dry_run": !yes });
    report(&client.document(Method::POST, &path, Some(&body))?, json)
}

/// Prints what a seek did, or would do, and fails if it did nothing that it should.
fn report(document: &Value, json: bool) -> Result<()> {
    let (source, done) = (word(&document["source"]), document["done"] == true);
    let partitions = document["partitions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if json {
        output::print(&format!("{document:#}"))?;
    } else if partitions.is_empty() {
        output::print(&format!("{source} is there already; nothing to do"))?;
    }
    let will = if done { "" } else { "would be: " };
    for step in partitions.iter().filter(|_| !json) {
        output::print(&format!("{will}{source}, {}", sentence(step)))?;
    }
    ensure!(partitions.is_empty() || done, "nothing was changed; pass --yes to apply it");
    Ok(())
}

fn clock(not_after: i64, yes: bool, config: &ConfigArgs, json: bool) -> Result<()> {
    let correction = correct_clock(&config.load()?, EventTime(not_after), yes)?;
    let [from, to] = [correction.from, correction.to].map(|time| time.map(|time| time.0));
    if json {
        let document = json!({ "done": yes, "below_position": correction.below.0, "from": from, "to": to });
        output::print(&format!("{document:#}"))?;
    } else {
        let shown = |time: Option<i64>| time.map_or_else(|| "no time".to_owned(), |time| time.to_string());
        let will = if yes { "" } else { "would be: " };
        output::print(&format!("{will}the stream stands at {}, before at {}", shown(to), shown(from)))?;
    }
    ensure!(yes, "nothing was changed; pass --yes to apply it");
    Ok(())
}

/// What a seek does to a partition, in words.
fn sentence(step: &Value) -> String {
    let count = |name: &str| step[name].as_i64().unwrap_or_default();
    let from = step["from"].as_i64().map_or_else(|| "its start".to_owned(), |from| from.to_string());
    let mut out = format!("partition {}: from {from} to {}", step["partition"], step["to"]);
    let (latest, skipped, read_again) = (count("broker_latest"), count("skipped"), count("read_again"));
    if step["from"].as_i64().is_some_and(|from| from > latest) {
        let _ = write!(out, "; the broker has offsets up to {latest} only, so the topic was recreated");
    }
    if skipped > 0 {
        let _ = write!(out, "; {skipped} offsets are skipped: their events are never read");
    }
    if read_again > 0 {
        let _ = write!(
            out,
            "; {read_again} offsets are read again: their events are stored and learned twice, but for those with \
             idempotency keys that are remembered"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::seek::Step;
    use crate::ingest::kafka::PartitionRange;

    #[test]
    fn names_are_segments_of_paths() {
        assert_eq!(path_segment("kafka:a/b.c"), "kafka%3Aa%2Fb.c");
    }

    #[test]
    fn a_source_is_told_with_its_partitions_and_a_step_with_what_it_costs() {
        let ingest = json!({
            "sources": [{
                "name": "kafka:t", "state": "paused", "detail": "paused by ann for 3 s", "received_events": 7,
                "accepted_events": 5, "rejected_events": 2, "dead_letters": 2, "lag_records": { "1": 4 },
            }],
            "positions": [
                { "source": "kafka:t", "partition": 0, "next_offset": 3 },
                { "source": "kafka:t", "partition": 1, "next_offset": 4 },
                { "source": "file:x", "partition": 0, "next_offset": 9 },
            ],
        });
        let sources = with_positions(&ingest);
        let text = describe_one(&sources[0]);
        for part in [
            "kafka:t: paused, paused by ann",
            "7 received, 5 accepted, 0 duplicate, 2 rejected (2 dead letters)",
            "partition  0 at offset 3, lag -",
            "partition  1 at offset 4, lag 4",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('9'));
        let range = PartitionRange { partition: 2, low: 0, high: 50 };
        let text = |from, to| {
            let response = seek::response("kafka:t", true, &[Step { range, from, to }]);
            sentence(&serde_json::to_value(&response).unwrap()["partitions"][0])
        };
        assert!(text(Some(10), 50).contains("40 offsets are skipped"));
        assert!(text(Some(50), 0).contains("50 offsets are read again"));
        assert!(text(Some(90), 0).contains("recreated"));
    }
}
