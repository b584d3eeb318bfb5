//! `evergraph log-level`: shows or changes the log level of a running daemon.

use anyhow::Result;
use clap::Args;
use serde_json::json;
use ureq::http::Method;

use super::client::{DaemonArgs, PATIENCE};
use super::output;

const PATH: &str = "/v1/admin/log-level";

/// `evergraph log-level`
#[derive(Debug, Args)]
pub(crate) struct LogLevelArgs {
    /// error, warn, info, debug or trace, or a filter such as info,evergraph::ingest=debug; without it, the
    /// level in effect is printed
    #[arg(value_name = "LEVEL")]
    level: Option<String>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Prints the level, or changes it until the next start.
pub(super) fn run(args: &LogLevelArgs) -> Result<()> {
    let client = args.daemon.client(PATIENCE)?;
    let stands = match &args.level {
        Some(level) => client.document(Method::PUT, PATH, Some(&json!({ "level": level })))?,
        None => client.document(Method::GET, PATH, None)?,
    };
    if args.json {
        return output::print(&format!("{stands:#}"));
    }
    if stands["level"] != stands["configured"] {
        let configured = stands["configured"].as_str().unwrap_or_default();
        output::print_status(&format!("until the next start; output.level of the settings is {configured}"));
    }
    output::print(stands["level"].as_str().unwrap_or_default())
}
