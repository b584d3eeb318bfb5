//! `evergraph top`: a running daemon on one screen, redrawn periodically, or printed once.
//!
//! Reads `/v1/status` and `/metrics`. Rates are the differences of two samples.

mod figures;
mod frame;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::Value;
use ureq::http::Method;

use self::figures::{Requests, Sample};
use super::client::{Client, DaemonArgs, PATIENCE};
use super::output;
use super::serve::Signals;

/// `evergraph top`
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Address of its health checks and metrics, where api.operations_listen is set; figures of requests come from
    /// there
    #[arg(long, value_name = "URL", env = "EVERGRAPH_OPERATIONS_URL")]
    operations_url: Option<String>,
    /// Seconds between two samples; rates are taken over them
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    interval: f64,
    /// Take two samples, print one screen, and exit
    #[arg(long)]
    once: bool,
    /// The figures of one screen as JSON, with rates per second; implies --once
    #[arg(long)]
    json: bool,
}

/// Draws until a signal comes, or once.
pub(super) fn run(args: &TopArgs) -> Result<()> {
    let possible = args.interval.is_finite() && (0.05..=3600.0).contains(&args.interval);
    ensure!(possible, "--interval {}: must be at least 0.05 and at most 3600", args.interval);
    let interval = Duration::from_secs_f64(args.interval);
    let client = args.daemon.client(PATIENCE)?;
    let operations = match &args.operations_url {
        Some(url) => client.elsewhere(url),
        None => client.elsewhere(&args.daemon.url),
    };
    let mut before = sample(&client, &operations)?;
    if args.once || args.json {
        std::thread::sleep(interval);
        let figures = figures::figures(&before, &sample(&client, &operations)?);
        let text = if args.json { format!("{figures:#}") } else { frame::draw(&args.daemon.url, &figures) };
        return output::print(text.trim_end());
    }
    let signals = Signals::listen()?;
    let live = std::io::stdout().is_terminal();
    while !signals.wait_timeout(interval) {
        let text = match sample(&client, &operations) {
            Ok(after) => {
                let figures = figures::figures(&before, &after);
                before = after;
                frame::draw(&args.daemon.url, &figures)
            }
            Err(error) => format!("{error:#}\n"),
        };
        output::print(&if live { frame::over_the_last(&text) } else { text })?;
    }
    Ok(())
}

/// Takes one sample. Metrics may be at another address, and are then missing.
fn sample(client: &Client<'_>, operations: &Client<'_>) -> Result<Sample> {
    let status = client.document(Method::GET, "/v1/status", None)?;
    let text_of = |path| operations.text(Method::GET, path, None, false).ok();
    let metrics = text_of("/metrics").filter(|(code, _)| code.is_success());
    let health = text_of("/readyz").and_then(|(_, text)| serde_json::from_str::<Value>(&text).ok());
    let requests = metrics.map(|(_, text)| Requests::of(&text));
    Ok(Sample { at: Instant::now(), status, health, requests })
}
