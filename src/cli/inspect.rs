//! Inspects a daemon or its data directory: `status`, `log`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use ureq::http::Method;

use super::client::{DaemonArgs, PATIENCE, json_of};
use super::output;
use crate::appender::Index;
use crate::catalog::Catalog;
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore};
use crate::log;

/// `evergraph status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Show the readiness checks only, and exit with 1 if the daemon is not ready
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

/// Prints the status document of a running daemon, or its readiness.
pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let path = if args.ready { "/readyz" } else { "/v1/status" };
    let client = args.daemon.client(PATIENCE)?;
    // Readiness is public, so no key is sent.
    let (status, text) = client.text(Method::GET, path, None, !args.ready)?;
    let url = client.url(path);
    let document = json_of(&url, status, &text)?;
    output::print(&format!("{document:#}"))?;
    anyhow::ensure!(
        status != 404,
        "{url} returned 404: readiness is served at api.operations_listen if that is set, all else at api.listen"
    );
    anyhow::ensure!(!args.ready || status.is_success(), "not ready: {url} returned {status}");
    anyhow::ensure!(status != 401 && status != 403, "{url} returned {status}; see --key-file");
    anyhow::ensure!(status.is_success(), "{url} returned {status}");
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
    let stats = index.stores.graph.stats();
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
        "nodes": index.stores.keys.len(),
        "edges": stats.edges,
        "graph_digest": format!("{:032x}", index.stores.graph.digest(&index.stores.keys)?),
        "positions": positions,
    });
    output::print(&format!("{document:#}"))
}

pub(super) fn open_catalog(data: &std::path::Path) -> Result<Catalog> {
    let path = data.join("catalog.sqlite");
    anyhow::ensure!(path.exists(), "{} is no data directory: it has no catalog.sqlite", data.display());
    Ok(Catalog::open(&path)?)
}
