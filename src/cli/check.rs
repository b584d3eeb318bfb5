//! `evergraph check`: validates the settings and probes what they name. Changes nothing.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{ConfigArgs, output};
use crate::config::Config;
use crate::daemon::sources::kafka_options;
use crate::ingest::kafka::preflight;
use crate::log;

const BROKER_PATIENCE: Duration = Duration::from_secs(10);

/// Probes one part after another and says what each found.
pub(super) fn run(args: &ConfigArgs) -> Result<()> {
    let config = args.load()?;
    let mut faults = 0;
    let mut tell = |part: &str, outcome: Result<String, String>| match outcome {
        Ok(found) => output::print(&format!("ok    {part}: {found}")),
        Err(fault) => {
            faults += 1;
            output::print(&format!("FAULT {part}: {fault}"))
        }
    };
    tell("settings", Ok("valid".to_owned()))?;
    tell("device", Ok(crate::device::probe().reason))?;
    tell("data", data(&config))?;
    tell("log", event_log(&config))?;
    tell("api", listen(&config))?;
    if config.ingest.kafka.brokers.is_empty() {
        tell("kafka", Ok("not configured".to_owned()))?;
    } else {
        tell("kafka", kafka(&config))?;
    }
    ensure!(faults == 0, "{faults} part(s) would not work; see the lines that begin with FAULT");
    Ok(())
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
        Ok(()) => Ok(format!("{} will be made", dir.display())),
        Err(error) => Err(format!("{} cannot be written: {error}; set data.dir", place.display())),
    }
}

fn event_log(config: &Config) -> Result<String, String> {
    let dir = config.data.dir.join("log");
    if !dir.exists() {
        return Ok("none yet".to_owned());
    }
    let mut reader = log::read_only(&dir).map_err(|error| error.to_string())?;
    let mut frames = 0_u64;
    while reader.next_frame().map_err(|error| error.to_string())?.is_some() {
        frames += 1;
    }
    Ok(format!("{frames} frames, {} records, every checksum holds", reader.position()))
}

fn listen(config: &Config) -> Result<String, String> {
    let address = config.api.listen;
    match std::net::TcpListener::bind(address) {
        Ok(_) => Ok(format!("{address} is free")),
        Err(error) => Err(format!("{address}: {error}; set api.listen, or stop what listens there")),
    }
}

fn kafka(config: &Config) -> Result<String, String> {
    let kafka = &config.ingest.kafka;
    let options = kafka_options(kafka);
    let report = preflight(&options, BROKER_PATIENCE).map_err(|fault| fault.to_string())?;
    Ok(format!("topic {} has {} partitions", kafka.topic, report.partitions.len()))
}
