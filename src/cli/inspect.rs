//! `evergraph status`, and the catalog of a data directory.

use anyhow::Result;
use clap::Args;
use ureq::http::Method;

use super::client::{DaemonArgs, PATIENCE, json_of};
use super::output;
use crate::catalog::Catalog;

/// `evergraph status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Show the readiness checks only, and exit with 1 if the daemon is not ready
    #[arg(long)]
    ready: bool,
    /// Address of health checks and metrics, where api.operations_listen is set; --url if not given
    #[arg(long, value_name = "URL", env = "EVERGRAPH_OPERATIONS_URL")]
    operations_url: Option<String>,
}

/// Prints the status document of a running daemon, or its readiness.
pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let path = if args.ready { "/readyz" } else { "/v1/status" };
    let mut client = args.daemon.client(PATIENCE)?;
    if let Some(url) = args.operations_url.as_ref().filter(|_| args.ready) {
        client = client.elsewhere(url);
    }
    // Readiness is public, so no key is sent.
    let (status, text) = client.text(Method::GET, path, None, !args.ready)?;
    let url = client.url(path);
    let document = json_of(&url, status, &text)?;
    anyhow::ensure!(
        status != 404,
        "{url} returned 404: readiness is served at api.operations_listen if that is set (--operations-url), all else \
         at api.listen"
    );
    output::print(&format!("{document:#}"))?;
    anyhow::ensure!(!args.ready || status.is_success(), "not ready: {url} returned {status}");
    anyhow::ensure!(status != 401 && status != 403, "{url} returned {status}; see --key-file");
    anyhow::ensure!(status.is_success(), "{url} returned {status}");
    Ok(())
}

/// The catalog of a data directory.
///
/// # Errors
/// When it is none, or the catalog cannot be read.
pub(super) fn open_catalog(data: &std::path::Path) -> Result<Catalog> {
    let path = data.join("catalog.sqlite");
    anyhow::ensure!(path.exists(), "{} is no data directory: it has no catalog.sqlite", data.display());
    Ok(Catalog::open(&path)?)
}
