//! `evergraph snapshot`: lists and verifies the snapshots of a data directory, and has a running daemon write one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::client::DaemonArgs;
use super::output;
use crate::appender::snapshot;
use crate::event::{ClockRules, EdgeId};

/// A snapshot takes as long as the disk.
pub(super) const PATIENCE: Duration = Duration::from_secs(660);

/// `evergraph snapshot`
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
enum SnapshotCommand {
    /// List the snapshots, newest first, as JSON
    List {
        /// Data directory of the daemon (data.dir); it may be running
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Read every snapshot and compare its checksums
    Verify {
        /// Data directory of the daemon (data.dir); it may be running
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Have a running daemon write a snapshot, wait until it is durable, and print its name. Needs a key whose role is
    /// admin; without keys, run it on the daemon's machine
    Create {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub(super) fn run(args: &SnapshotArgs) -> Result<()> {
    match &args.command {
        SnapshotCommand::List { data } => {
            let rows: Vec<Value> = all(data)?.iter().rev().map(|found| row(data, *found)).collect();
            output::print(&format!("{:#}", json!(rows)))
        }
        SnapshotCommand::Verify { data } => verify(data),
        SnapshotCommand::Create { daemon, json } => create(daemon, *json),
    }
}

/// The folder of a data directory's snapshots.
fn folder(data: &Path) -> PathBuf {
    data.join("snapshots")
}

/// The positions of the snapshots of a data directory, the oldest first.
///
/// # Errors
/// When it is no data directory, or cannot be read.
pub(super) fn all(data: &Path) -> Result<Vec<EdgeId>> {
    let folder = folder(data);
    snapshot::positions(&folder).with_context(|| format!("cannot read the folder {}", folder.display()))
}

fn row(data: &Path, position: EdgeId) -> Value {
    let name = snapshot::name(position);
    let files = std::fs::read_dir(folder(data).join(&name)).into_iter().flatten().flatten();
    let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum();
    json!({ "name": name, "position": position.0, "bytes": bytes })
}

fn verify(data: &Path) -> Result<()> {
    let positions = all(data)?;
    let mut damaged = 0;
    for &position in &positions {
        let path = folder(data).join(snapshot::name(position));
        let verified = snapshot::open(&path, ClockRules::default()).and_then(|head| head.verify());
        match verified {
            Ok(()) => output::print(&format!("{}: whole", snapshot::name(position)))?,
            Err(error) => {
                damaged += 1;
                output::print_status(&error.to_string());
            }
        }
    }
    ensure!(damaged == 0, "{damaged} of {} snapshots cannot be used", positions.len());
    Ok(())
}

fn create(daemon: &DaemonArgs, json: bool) -> Result<()> {
    let made = daemon.client(PATIENCE)?.document(Method::POST, "/v1/admin/snapshots", Some(&json!({})))?;
    if json {
        return output::print(&format!("{made:#}"));
    }
    output::print_status(&format!("durable: a start reads the log from position {} on", made["position"]));
    output::print(made["name"].as_str().unwrap_or_default())
}
