//! `evergraph check`: validates the settings and probes what they name. Changes nothing.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::DateTime;
use clap::Args;

use super::{ConfigArgs, machine, output, sample};
use crate::api::{Keys, Tls};
use crate::catalog::Catalog;
use crate::config::{ClusterRole, Config, TopicSection, ignored_variables};
use crate::daemon::source_options::{
    anomaly_options, decode_options, feed_options, kafka_sources, replication_options, schema_registry,
};
use crate::daemon::{DeviceSelection, fixed_settings};
use crate::device::{CudaFound, Device};
use crate::ingest::kafka::{KafkaFault, KafkaSourceOptions, preflight, what_is_missing};
use crate::ingest::produce::{AnomalyTopic, FeedTopic, OutletOptions};
use crate::ingest::rows::{Rows, expect_file};
use crate::learner::checkpoint;
use crate::log;
use crate::train::Trainer;

const BROKER_PATIENCE: Duration = Duration::from_secs(10);

/// What to check.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Read the whole event log, not only its last segment
    #[arg(long)]
    whole_log: bool,
    /// Show so many messages of each topic, and rows of the file, as the events that they would be, or why not; where
    /// they cannot be read, propose a mapping. Stores nothing
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sample: Option<u32>,
}

/// Probes one part after another and prints the outcome of each.
pub(super) fn run(args: &CheckArgs) -> Result<()> {
    let config = args.config.load()?;
    let mut faults = 0;
    let mut report = |part: &str, outcome: Result<String, String>| match outcome {
        Ok(found) => output::print(&format!("ok    {part}: {found}")),
        Err(fault) => {
            faults += 1;
            output::print(&format!("FAULT {part}: {fault}"))
        }
    };
    for warning in config.warnings().into_iter().chain(ignored_variables()) {
        output::print(&format!("warn  settings: {warning}"))?;
    }
    let placement = DeviceSelection::without_trial(&config);
    report("settings", Ok("valid".to_owned()))?;
    report("device", placement.shortfall.clone().map_or_else(|| Ok(placement.reason.clone()), Err))?;
    if let Some(details) = placement.details() {
        report("gpu", Ok(details))?;
    }
    if let Some(found) = &placement.found {
        report("cuda", Ok(cuda(found)))?;
    }
    report("data", data(&config))?;
    report("log", event_log(&config, args.whole_log))?;
    report("catalog", catalog(&config))?;
    report("checkpoint", newest_checkpoint(&config, &placement.device))?;
    report("api", listen(&config))?;
    if config.api.keys_file != Path::new("") {
        let keys = Keys::open(&config.api.keys_file).map_err(|error| error.to_string());
        report("keys", keys.map(|keys| format!("{} keys", keys.count())))?;
    }
    if config.api.tls_certificate != Path::new("") {
        let tls = Tls::open(&config.api.tls_certificate, &config.api.tls_key);
        report("certificate", tls.map(|_| "matches its key".to_owned()).map_err(|error| error.to_string()))?;
    }
    if config.ingest.file.path != Path::new("") {
        report("file", event_file(&config))?;
    }
    let topics = match kafka_sources(&config) {
        Ok(topics) => topics,
        Err(error) => {
            report("registry", Err(error.to_string()))?;
            Vec::new()
        }
    };
    if config.ingest.kafka.brokers.is_empty() {
        report("kafka", Ok("not configured".to_owned()))?;
    } else if let Ok(Some(registry)) = schema_registry(&config) {
        let url = &config.ingest.kafka.registry.url;
        let responds = registry.probe().map(|()| format!("{url} responds"));
        report("registry", responds.map_err(|down| down.to_string()))?;
    }
    for (_, options) in &topics {
        report("kafka", topic(options))?;
        for warning in missing_rights(options) {
            output::print(&format!("warn  kafka: {warning}"))?;
        }
    }
    for options in letter_topics(&config, &topics) {
        report("dead letters", topic(&options))?;
    }
    for (part, outcome) in outlets(&config) {
        report(part, outcome)?;
    }
    if let Some(count) = args.sample {
        show_sample(&config, &topics, count as usize)?;
    }
    ensure!(faults == 0, "{faults} part(s) would not work; see the lines that begin with FAULT");
    Ok(())
}

/// Real messages as events. A broker that does not respond was reported above.
fn show_sample(config: &Config, topics: &[(TopicSection, KafkaSourceOptions)], count: usize) -> Result<()> {
    let file = &config.ingest.file;
    if file.path != Path::new("") {
        sample::of_file(config, &file.path, &file.mapping, count)?;
    }
    for (topic, options) in topics {
        if let Err(error) = sample::of_topic(&topic.section, options, count) {
            output::print(&format!("warn  sample: {error:#}"))?;
        }
    }
    Ok(())
}

/// The CUDA devices, and how each GPU is connected.
fn cuda(found: &CudaFound) -> String {
    let links = found.devices.iter().enumerate().filter_map(|(number, gpu)| {
        let link = machine::pci_link(Path::new("/sys/bus/pci/devices"), &gpu.bus)?;
        Some(format!("; GPU {number}: {link}"))
    });
    found.describe() + &links.collect::<String>()
}

/// Whether the data directory can be written, without leaving anything there.
fn data(config: &Config) -> Result<String, String> {
    let dir = &config.data.dir;
    let existing = dir.ancestors().find(|path| path.exists() || *path == Path::new("")).unwrap_or(dir);
    let place = if existing == Path::new("") { Path::new(".") } else { existing };
    let file = place.join(".evergraph-check");
    let written = std::fs::write(&file, b"check").and_then(|()| std::fs::remove_file(&file));
    match written {
        Ok(()) if dir.exists() => Ok(format!("{} can be written", dir.display())),
        Ok(()) if dir.is_relative() => {
            let from = std::env::current_dir().unwrap_or_default();
            let words = "will be made there; if a daemon has run, it is another folder: give --data";
            Ok(format!("{} is not in {} and {words}", dir.display(), from.display()))
        }
        Ok(()) => Ok(format!("{} will be made", dir.display())),
        Err(error) => Err(format!("{} cannot be written: {error}; set data.dir", place.display())),
    }
}

/// Reads the last segment, where a crash leaves its traces, or all of them: that takes as long as a start.
fn event_log(config: &Config, whole: bool) -> Result<String, String> {
    let dir = config.data.dir.join("log");
    if !dir.exists() {
        return Ok("none yet".to_owned());
    }
    let mut reader = log::read_only(&dir).map_err(|error| error.to_string())?;
    let first = if whole { reader.position() } else { reader.start_at_last_segment() };
    let mut frames = 0_u64;
    while reader.next_frame().map_err(|error| error.to_string())?.is_some() {
        frames += 1;
    }
    let end = reader.position();
    let unread = if first.0 == 0 { "" } else { "; --whole-log reads what is before" };
    Ok(format!("records {} to {} in {frames} frames, every checksum holds{unread}", first.0, end.0))
}

fn listen(config: &Config) -> Result<String, String> {
    let apart = config.api.operations_listen.map(|address| ("api.operations_listen", address));
    let mut free = Vec::new();
    for (key, address) in [("api.listen", config.api.listen)].into_iter().chain(apart) {
        // Held until all are tried, so that using one address twice is a fault.
        let bound = std::net::TcpListener::bind(address)
            .map_err(|error| format!("{address}: {error}; set {key}, or stop what listens there"))?;
        free.push((address, bound));
    }
    let names: Vec<String> = free.iter().map(|(address, _)| address.to_string()).collect();
    Ok(format!("{} free", names.join(" and ")))
}

/// The settings that may not change, as the data directory was made with.
fn catalog(config: &Config) -> Result<String, String> {
    let Some(catalog) = open_catalog(config)? else { return Ok("none yet".to_owned()) };
    for (name, value) in fixed_settings(config) {
        catalog.compare_setting(name, &value).map_err(|error| error.to_string())?;
    }
    Ok("the fixed settings are those that the data directory was made with".to_owned())
}

/// Whether the checkpoint that a start would take fits the settings.
fn newest_checkpoint(config: &Config, device: &Device) -> Result<String, String> {
    let Some(catalog) = open_catalog(config)? else { return Ok("none yet".to_owned()) };
    let mut rows = catalog.checkpoints().map_err(|error| error.to_string())?;
    rows.sort_by_key(|row| std::cmp::Reverse(row.position));
    for row in rows {
        // A start skips a damaged one, too.
        let path = config.data.dir.join("checkpoints").join(&row.file);
        let Ok(mut found) = checkpoint::open(&path) else { continue };
        let options = config.trainer_options();
        return match Trainer::load(options, device, &mut found.payload) {
            Ok(_) => Ok(format!("{} at position {} fits [model]", row.file, row.position)),
            Err(error) => Err(format!(
                "{} cannot be used: {error}; set [model] and [stream] back, or use another data.dir",
                path.display()
            )),
        };
    }
    Ok("none yet".to_owned())
}

fn open_catalog(config: &Config) -> Result<Option<Catalog>, String> {
    let path = config.data.dir.join("catalog.sqlite");
    if !path.exists() {
        return Ok(None);
    }
    Catalog::open_read_only(&path).map(Some).map_err(|error| error.to_string())
}

/// Whether the event file can be opened and its rows are as long as the stream's.
fn event_file(config: &Config) -> Result<String, String> {
    let path = &config.ingest.file.path;
    expect_file(path).map_err(|error| format!("{error} (ingest.file.path)"))?;
    if let Some(mapping) = config.mapping(&config.ingest.file.mapping) {
        let rows = Rows::open(path, decode_options(config), Some(mapping));
        rows.map_err(|error| format!("{error} (ingest.file.path)"))?;
        return Ok(format!("{} is read by [ingest.mappings.{}]", path.display(), config.ingest.file.mapping));
    }
    let rows = Rows::open(path, decode_options(config), None);
    let rows = rows.map_err(|error| format!("{error} (ingest.file.path)"))?;
    let Some(found) = rows.feature_columns() else {
        return Ok(format!("{} holds plain events", path.display()));
    };
    let wanted = config.stream.edge_feature_dimension;
    if found == wanted {
        Ok(format!("{} has {found} feature columns", path.display()))
    } else {
        Err(format!(
            "{} has {found} feature columns and stream.edge_feature_dimension = {wanted}: every event would \
             be rejected",
            path.display()
        ))
    }
}

fn topic(options: &KafkaSourceOptions) -> Result<String, String> {
    let report = preflight(options, BROKER_PATIENCE).map_err(|fault| fault.to_string())?;
    let login = report.logged_in.map_or_else(String::new, |login| {
        let until = DateTime::from_timestamp_millis(login.valid_until_unix_ms).unwrap_or_default();
        let (who, issuer, until) = (login.principal, login.issuer, until.format("%Y-%m-%dT%H:%M:%SZ"));
        format!("; logs in as {who} by a token of {issuer}, valid until {until}")
    });
    Ok(format!("topic {} has {} partitions{login}", options.topic, report.partitions.len()))
}

/// The topics that are written to.
fn outlets(config: &Config) -> Vec<(&'static str, Result<String, String>)> {
    let mut outcomes = Vec::new();
    if !config.feed.topic.is_empty() {
        let (options, format) = feed_options(config);
        let check = |options| FeedTopic::new(options, format.clone()).check();
        outcomes.push(("feed", outlet(options, check)));
    }
    if !config.anomalies.topic.is_empty() {
        let check = |options| AnomalyTopic::new(options).check();
        outcomes.push(("anomalies", outlet(anomaly_options(config), check)));
    }
    if config.cluster.role != ClusterRole::Single {
        let found = replication_options(config).check(config.cluster.role == ClusterRole::Leader);
        outcomes.push(("cluster", found.map_err(|fault| fault.to_string())));
    }
    outcomes
}

/// Whether a topic that is written to is there, or would be created.
fn outlet(
    options: OutletOptions,
    check: impl Fn(OutletOptions) -> Result<usize, KafkaFault>,
) -> Result<String, String> {
    let (topic, creates) = (options.topic.clone(), options.create_partitions);
    // Nothing is created by a check.
    match (check(OutletOptions { create_partitions: None, ..options }), creates) {
        (Ok(partitions), _) => Ok(format!("topic {topic} has {partitions} partitions")),
        (Err(KafkaFault::TopicMissing { .. }), Some(creates)) => {
            Ok(format!("topic {topic} will be created with {creates} partitions"))
        }
        (Err(fault), _) => Err(fault.to_string()),
    }
}

/// Every topic that dead letters go to, once.
fn letter_topics(config: &Config, topics: &[(TopicSection, KafkaSourceOptions)]) -> Vec<KafkaSourceOptions> {
    let mut found: Vec<KafkaSourceOptions> = Vec::new();
    for (topic, options) in topics {
        let letters = config.ingest.kafka.dead_letter_topic_of(&topic.settings);
        if !letters.is_empty() && found.iter().all(|options| options.topic != letters) {
            found.push(KafkaSourceOptions { topic: letters.to_owned(), ..options.clone() });
        }
    }
    found
}

/// What a source of events can do without for the moment, if its topic can be read at all.
fn missing_rights(options: &KafkaSourceOptions) -> Vec<KafkaFault> {
    let Ok(report) = preflight(options, BROKER_PATIENCE) else { return Vec::new() };
    what_is_missing(options, &report.partitions, BROKER_PATIENCE).unwrap_or_else(|fault| vec![fault])
}
