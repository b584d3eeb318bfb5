//! `evergraph checkpoint`: lists, verifies, creates and restores checkpoints.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::client::DaemonArgs;
use super::inspect::open_catalog;
use super::{ConfigArgs, output};
use crate::catalog::CheckpointRow;
use crate::daemon::promotion;
use crate::learner::checkpoint;

/// A checkpoint is as large as the node memory, and waits for the batch at hand.
const PATIENCE: Duration = Duration::from_secs(660);

/// `evergraph checkpoint`
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
enum CheckpointCommand {
    /// List the checkpoints, newest first, as JSON
    List {
        /// Data directory of the daemon (data.dir)
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Read every checkpoint and compare its checksum
    Verify {
        /// Data directory of the daemon (data.dir)
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Have a running daemon write a checkpoint, wait until it is durable, and print its name. Needs a key whose role
    /// is admin; without keys, run it on the daemon's machine
    Create {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Continue from this checkpoint at the next start, although there are later ones; the daemon must be stopped. The
    /// log after it is learned again. Later checkpoints are kept as *.superseded and can be restored, too
    Restore {
        /// Name of the checkpoint, as listed by `checkpoint list`
        #[arg(value_name = "NAME")]
        name: String,
        /// The daemon's settings
        #[command(flatten)]
        config: ConfigArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(super) fn run(args: &CheckpointArgs) -> Result<()> {
    match &args.command {
        CheckpointCommand::List { data } => {
            let rows: Vec<_> = open_catalog(data)?.checkpoints()?.iter().map(row).collect();
            output::print(&format!("{:#}", json!(rows)))
        }
        CheckpointCommand::Verify { data } => verify(data),
        CheckpointCommand::Create { daemon, json } => create(daemon, *json),
        CheckpointCommand::Restore { name, config, json } => restore(name, config, *json),
    }
}

fn verify(data: &Path) -> Result<()> {
    let rows = open_catalog(data)?.checkpoints()?;
    let mut damaged = 0;
    for row in &rows {
        match checkpoint::open(&data.join("checkpoints").join(&row.file)) {
            Ok(found) if found.file.head.position.0 == row.position => {
                output::print(&format!("{}: whole, position {}", row.file, row.position))?;
            }
            Ok(found) => {
                damaged += 1;
                let position = found.file.head.position;
                output::print_status(&format!(
                    "{}: holds position {position}, not {}",
                    row.file, row.position
                ));
            }
            Err(error) => {
                damaged += 1;
                output::print_status(&error.to_string());
            }
        }
    }
    ensure!(damaged == 0, "{damaged} of {} checkpoints cannot be used", rows.len());
    Ok(())
}

fn create(daemon: &DaemonArgs, json: bool) -> Result<()> {
    let made = daemon.client(PATIENCE)?.document(Method::POST, "/v1/admin/checkpoints", Some(&json!({})))?;
    if json {
        return output::print(&format!("{made:#}"));
    }
    output::print_status(&format!(
        "durable: everything that was learned up to position {}; version {} is served",
        made["position"], made["model_version"]
    ));
    output::print(made["name"].as_str().unwrap_or_default())
}

fn restore(name: &str, config: &ConfigArgs, json: bool) -> Result<()> {
    let (restored, behind) = promotion::restore_checkpoint(&config.load()?, name)?;
    let position = restored.head.position.0;
    if json {
        let document = json!({
            "name": restored.name,
            "position": position,
            "model_version": restored.head.model_version,
            "learned_again": behind,
            "superseded": restored.superseded,
        });
        return output::print(&format!("{document:#}"));
    }
    output::print(&format!(
        "the next start continues from {} and serves version {}; {behind} records of the log, from position {position} \
         on, are learned again then",
        restored.name, restored.head.model_version
    ))?;
    for file in &restored.superseded {
        output::print_status(&format!(
            "{file} is later: kept as *.superseded until it is removed or restored"
        ));
    }
    Ok(())
}

fn row(row: &CheckpointRow) -> Value {
    json!({
        "file": row.file,
        "position": row.position,
        "model_version": row.model_version,
        "bytes": row.bytes,
        "crc32c": format!("{:08x}", row.crc32c),
        "average_precision": row.average_precision,
        "edgebank_average_precision": row.baseline,
        "created_unix_ms": row.created_unix_ms,
    })
}
