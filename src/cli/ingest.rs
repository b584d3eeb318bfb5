//! `evergraph ingest`: pushes a file of events as a producer would.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use indicatif::{HumanCount, ProgressBar};

use super::client::DaemonArgs;
use super::{output, sample};
use crate::config::Config;
use crate::ingest::kafka::KafkaClientOptions;
use crate::ingest::produce::{
    HttpTarget, ProduceOptions, ProduceReport, ProduceTarget, TopicTarget, produce,
};

/// What to push where.
#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    /// Event file: CSV, CSV.gz, JSON lines or Parquet with columns src, dst, ts
    #[arg(long, value_name = "FILE")]
    events: PathBuf,
    /// Where to push
    #[arg(long, value_enum, required_unless_present = "dry_run")]
    to: Option<Target>,
    /// Push nothing: show the first N rows as the events that a daemon with these settings would make of them, or why
    /// not, and propose a mapping where they cannot be read
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10", conflicts_with = "to")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    dry_run: Option<u32>,
    /// Settings file of the daemon, for --dry-run
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    config: Option<PathBuf>,
    /// The mapping for --dry-run, one of [ingest.mappings]; that of ingest.file.mapping if not given
    #[arg(long, value_name = "NAME", requires = "dry_run")]
    mapping: Option<String>,
    /// Kafka brokers, comma-separated
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    brokers: String,
    /// Kafka topic
    #[arg(long, default_value = "evergraph-events")]
    topic: String,
    /// Make the topic with this many partitions if it is not there
    #[arg(long, value_name = "N")]
    create_partitions: Option<i32>,
    /// Any librdkafka property, for example --property security.protocol=SASL_SSL
    #[arg(long, value_name = "NAME=VALUE")]
    property: Vec<String>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Events per second; as fast as the target takes them if not given. To a topic, counted from when it has
    /// acknowledged the first one
    #[arg(long, value_name = "RATE")]
    rate: Option<f64>,
    /// Events per HTTP request
    #[arg(long, alias = "batch-size", default_value_t = 1000)]
    batch_events: usize,
    /// Continue at this row, counted from 0
    #[arg(long, default_value_t = 0)]
    from_row: u64,
    /// Write the report as JSON to a file, or to standard output with -
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    Kafka,
    Http,
}

/// Pushes the file.
pub(super) fn run(args: &IngestArgs) -> Result<()> {
    if let Some(count) = args.dry_run {
        return show(args, count as usize);
    }
    let mut options = ProduceOptions::new(&args.events, target(args)?);
    options.events_per_second = args.rate;
    options.batch_events = args.batch_events.max(1);
    options.from_row = args.from_row;
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    let (mut reported, mut faults) = (false, Vec::new());
    let produced = produce(&options, &mut |report| {
        bar.set_message(describe(report));
        faults.clone_from(&report.faults);
        // Where nobody sees the progress, the reason of a long silence is reported once.
        if let Some(trouble) = report.trouble.as_ref().filter(|_| !std::mem::replace(&mut reported, true)) {
            bar.suspend(|| output::print_status(&format!("trying again: {trouble}")));
        }
    });
    bar.finish_and_clear();
    faults.iter().for_each(|fault| output::print_status(fault));
    let report = produced?;
    let more = (report.bad_rows + report.rejected).saturating_sub(faults.len() as u64);
    if more > 0 {
        output::print_status(&format!("and {more} more of these"));
    }
    if report.rejected > 0 {
        output::print_status("the daemon keeps what it rejected as dead letters");
    }
    output::print_status(&describe(&report));
    match &args.json {
        None => Ok(()),
        Some(path) if path.as_os_str() == "-" => output::print(&serde_json::to_string(&report)?),
        Some(path) => std::fs::write(path, serde_json::to_string(&report)?)
            .with_context(|| format!("--json {}", path.display())),
    }
}

/// Shows rows as events; fails if one is none.
fn show(args: &IngestArgs, count: usize) -> Result<()> {
    let config = Config::load(args.config.as_deref(), &[])?;
    let name = args.mapping.as_deref().unwrap_or(&config.ingest.file.mapping);
    let known = name.is_empty() || config.ingest.mappings.contains_key(name);
    ensure!(known, "--mapping {name}: the settings have no [ingest.mappings.{name}]");
    let outcome = sample::of_file(&config, &args.events, name, count)?;
    ensure!(outcome.refused == 0, "{} of the rows shown are no events", outcome.refused);
    Ok(())
}

fn target(args: &IngestArgs) -> Result<ProduceTarget> {
    match args.to.unwrap_or(Target::Http) {
        Target::Http => {
            let (token, roots) = (args.daemon.key()?, args.daemon.roots()?);
            Ok(ProduceTarget::Http(HttpTarget { token, roots, ..HttpTarget::new(&args.daemon.url) }))
        }
        Target::Kafka => {
            let mut properties = BTreeMap::new();
            for pair in &args.property {
                let (name, value) = pair
                    .split_once('=')
                    .with_context(|| format!("--property {pair}: write it as NAME=VALUE"))?;
                properties.insert(name.to_owned(), value.to_owned());
            }
            let mut client = KafkaClientOptions::new(&args.brokers);
            client.properties = properties;
            let create_partitions = args.create_partitions;
            Ok(ProduceTarget::Topic(TopicTarget { client, topic: args.topic.clone(), create_partitions }))
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn describe(report: &ProduceReport) -> String {
    let rate = report.sent as f64 / report.seconds.max(1e-9);
    format!(
        "{} events sent, {rate:.0}/s; {} duplicates, {} rejected, {} rows skipped, {} sent again",
        HumanCount(report.sent),
        report.duplicates,
        report.rejected,
        report.bad_rows,
        report.retries,
    )
}
