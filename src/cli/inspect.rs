//! Looks at a daemon or at what it left behind: `status`, `log`, `checkpoint`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use ureq::tls::TlsConfig;

use super::client::DaemonArgs;
use super::output;
use crate::appender::Index;
use crate::catalog::Catalog;
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore};
use crate::learner::checkpoint;
use crate::log;

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// `evergraph status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Only ask whether it is ready for requests: show the checks, and exit with 1 if it is not
    #[arg(long)]
    ready: bool,
}

/// `evergraph log`
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Data directory of the daemon (data.dir); it may be running
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

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
}

/// Prints the status document of a running daemon, or its readiness.
pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let path = if args.ready { "/readyz" } else { "/v1/status" };
    let url = format!("{}{path}", args.daemon.url.trim_end_matches('/'));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .tls_config(TlsConfig::builder().root_certs(args.daemon.roots()?).build())
        .timeout_global(Some(PATIENCE))
        .build()
        .into();
    let mut request = agent.get(&url);
    // Whether a daemon is ready is told to everybody, so no key is shown for it.
    if !args.ready
        && let Some(key) = args.daemon.key()?
    {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut answer = request
        .call()
        .with_context(|| format!("no daemon answers at {url}; is it running, and is --url right?"))?;
    let text = answer.body_mut().read_to_string().with_context(|| format!("{url}: the answer broke off"))?;
    let document: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{url} did not answer with JSON"))?;
    output::print(&format!("{document:#}"))?;
    let status = answer.status();
    anyhow::ensure!(
        status != 404,
        "{url} answered 404: readiness is asked at api.operations_listen where that is set, all else at api.listen"
    );
    anyhow::ensure!(!args.ready || status.is_success(), "not ready: {url} answered {status}");
    anyhow::ensure!(status != 401 && status != 403, "{url} answered {status}; see --key-file");
    anyhow::ensure!(status.is_success(), "{url} answered {status}");
    Ok(())
}

/// Reads a log from its start and prints what it means, with a digest of the graph that is the same for
/// the same edges whatever the order they arrived in.
pub(super) fn log(args: &LogArgs) -> Result<()> {
    let rows = || FeatureStore::new(0);
    let mut index = Index::new(GraphStore::new(GraphOptions::default()), rows(), rows(), 0);
    let mut reader = log::read_only(&args.data.join("log"))?;
    let (mut frames, mut records) = (0_u64, 0_u64);
    while let Some(frame) = reader.next_frame()? {
        frames += 1;
        records += frame.batch.len() as u64;
        index.absorb(&frame)?;
    }
    let stats = index.graph.stats();
    let positions: Vec<_> = index
        .positions
        .all()
        .iter()
        .map(|at| json!({"source": at.source.as_ref(), "partition": at.partition, "next_offset": at.next_offset}))
        .collect();
    let document = json!({
        "frames": frames,
        "records": records,
        "end_position": index.end().0,
        "nodes": index.keys.len(),
        "edges": stats.edges,
        "graph_digest": format!("{:032x}", index.graph.digest(&index.keys)?),
        "positions": positions,
    });
    output::print(&format!("{document:#}"))
}

/// Lists or verifies checkpoints.
pub(super) fn checkpoints(args: &CheckpointArgs) -> Result<()> {
    match &args.command {
        CheckpointCommand::List { data } => {
            let rows: Vec<_> = open_catalog(data)?.checkpoints()?.iter().map(row).collect();
            output::print(&format!("{:#}", json!(rows)))
        }
        CheckpointCommand::Verify { data } => {
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
                        output::tell(&format!(
                            "{}: holds position {position}, not {}",
                            row.file, row.position
                        ));
                    }
                    Err(error) => {
                        damaged += 1;
                        output::tell(&error.to_string());
                    }
                }
            }
            anyhow::ensure!(damaged == 0, "{damaged} of {} checkpoints cannot be used", rows.len());
            Ok(())
        }
    }
}

pub(super) fn open_catalog(data: &std::path::Path) -> Result<Catalog> {
    let path = data.join("catalog.sqlite");
    anyhow::ensure!(path.exists(), "{} is no data directory: it has no catalog.sqlite", data.display());
    Ok(Catalog::open(&path)?)
}

fn row(row: &crate::catalog::CheckpointRow) -> serde_json::Value {
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
