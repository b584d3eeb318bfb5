//! `evergraph demo`: the daemon on a generated stream, with a status block on the terminal.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::serve::Signals;
use super::{ConfigArgs, output};
use crate::daemon::{Daemon, GeneratedOptions, Interrupted, StatusDocument, log_level};
use crate::ingest::generated::FEATURE_DIMENSION;

/// Options of the demo.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Address of the HTTP interface
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Folder for the demo's data; run it again to continue
    #[arg(long, value_name = "DIR", default_value = "evergraph-demo")]
    data: PathBuf,
    /// Events per second of the generated stream
    #[arg(long, value_name = "RATE", default_value_t = 1000.0)]
    rate: f64,
    /// Seed of the generated stream
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stop by itself after this many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

/// How often the block is drawn, and how often a line is written where there is no terminal.
const DRAW: Duration = Duration::from_millis(500);
const LINES_PER_DRAW: u32 = 20;

/// How long the introduction waits for the nodes of its example requests.
const FIRST_EVENT_PATIENCE: Duration = Duration::from_secs(10);

/// Runs the demo.
pub(super) fn run(args: &DemoArgs) -> Result<()> {
    anyhow::ensure!(
        args.rate.is_finite() && args.rate > 0.0,
        "--rate {}: must be a positive number",
        args.rate
    );
    let config = ConfigArgs {
        listen: Some(args.listen.clone()),
        data: Some(args.data.display().to_string()),
        // The demo is a world of its own, whatever sources the environment names.
        set: vec![
            "ingest.kafka.brokers=".to_owned(),
            "ingest.file.path=".to_owned(),
            format!("stream.edge_feature_dimension={FEATURE_DIMENSION}"),
            "checkpoint.interval_seconds=15".to_owned(),
            "output.level=warn".to_owned(),
        ],
        ..ConfigArgs::default()
    }
    .load()?;
    log_level::start(&config.output)?;
    let signals = Signals::listen()?;
    output::print_status(&format!("Evergraph demo: opening {} …", args.data.display()));
    let generated = GeneratedOptions { seed: args.seed, events_per_second: args.rate };
    let daemon = match Daemon::start(&config, Some(generated), &signals.stop_requested) {
        Err(error) if error.is::<Interrupted>() => return Ok(()),
        started => started?,
    };
    if wait_for_the_first_event(&daemon, &signals) {
        output::print_status(&introduction(&daemon));
        watch(&daemon, &signals, args.seconds);
    }
    output::print_status("stopping: draining the queue and writing a checkpoint …");
    let end = daemon.status().log.durable_position;
    daemon.stop()?;
    output::print_status(&format!(
        "stopped after event {end}. Run it again to continue; remove {} to start over.",
        args.data.display()
    ));
    Ok(())
}

/// Waits until the example requests would succeed; `false` if a signal comes first.
fn wait_for_the_first_event(daemon: &Daemon, signals: &Signals) -> bool {
    let begun = Instant::now();
    while daemon.status().learner.applied_position == 0 && begun.elapsed() < FIRST_EVENT_PATIENCE {
        if signals.wait_timeout(Duration::from_millis(20)) {
            return false;
        }
    }
    true
}

/// The addresses, that of the console first, and three example requests.
fn introduction(daemon: &Daemon) -> String {
    let at = format!("http://{}", daemon.address());
    let json = "-H 'content-type: application/json' -d";
    format!(
        "\
Console {at}/ui/

A made-up shop: users visit items, their tastes drift. The model learns from every visit.
API {at}   documentation {at}/docs

  curl -s {at}/v1/embeddings {json} '{{\"nodes\":[\"user-1\"]}}'
  curl -s {at}/v1/links/score {json} '{{\"pairs\":[{{\"src\":\"user-1\",\"dst\":\"item-1\"}}]}}'
  curl -s {at}/v1/nodes/user-1

Ctrl-C stops it.
"
    )
}

fn watch(daemon: &Daemon, signals: &Signals, seconds: Option<u64>) {
    let live = std::io::stderr().is_terminal();
    let block = ProgressBar::new_spinner();
    // The template is a constant; the default style is as good if it were refused.
    block.set_style(
        ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    let mut rate = Rate::default();
    let mut turn = 0;
    loop {
        let status = daemon.status();
        let per_second = rate.per_second(&status);
        if live {
            block.set_message(draw(&status, per_second));
        } else if turn % LINES_PER_DRAW == 0 {
            output::print_status(&line(&status, per_second));
        }
        turn += 1;
        let over = seconds.is_some_and(|limit| u64::from(turn) * 500 >= limit * 1000);
        if over || daemon.fault().is_some() || signals.wait_timeout(DRAW) {
            block.finish_and_clear();
            output::print_status(&line(&daemon.status(), per_second));
            return;
        }
    }
}

/// Events learned per second, smoothed.
#[derive(Default)]
struct Rate {
    last: Option<(f64, u64)>,
    smooth: f64,
}

impl Rate {
    #[allow(clippy::cast_precision_loss)]
    fn per_second(&mut self, status: &StatusDocument) -> f64 {
        let now = (status.uptime_seconds, status.learner.applied_position);
        if let Some((then, position)) = self.last
            && now.0 > then
        {
            let current = now.1.saturating_sub(position) as f64 / (now.0 - then);
            self.smooth += 0.2 * (current - self.smooth);
        }
        self.last = Some(now);
        self.smooth
    }
}

fn draw(status: &StatusDocument, per_second: f64) -> String {
    let learner = &status.learner;
    let score = |value: Option<f64>| value.map_or_else(|| "  –  ".to_owned(), |value| format!("{value:.3}"));
    let ahead = match (learner.average_precision, learner.edgebank_average_precision) {
        (Some(model), Some(bank)) => format!("{:+.3}", model - bank),
        _ => String::new(),
    };
    format!(
        "\
 events    {:>12}   {per_second:>8.0}/s   {} behind
 quality   AP {}   EdgeBank {}   {ahead}   MRR {}
 loss      {:>8}   model version {}
 freshness p50 {}   p99 {}
 graph     {} nodes   {} edges   memory {}",
        learner.applied_position,
        learner.lag_events,
        score(learner.average_precision),
        score(learner.edgebank_average_precision),
        score(learner.mrr),
        learner.loss.map_or_else(|| "–".to_owned(), |loss| format!("{loss:.4}")),
        learner.model_version,
        milliseconds(learner.end_to_end_freshness_p50_seconds),
        milliseconds(learner.end_to_end_freshness_p99_seconds),
        status.graph.nodes,
        status.graph.edges,
        mebibytes(status.resident_bytes),
    )
}

fn line(status: &StatusDocument, per_second: f64) -> String {
    let learner = &status.learner;
    let score = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    format!(
        "events {} ({per_second:.0}/s, {} behind)  AP {}  EdgeBank {}  loss {}  fresh p99 {}  memory {}",
        learner.applied_position,
        learner.lag_events,
        score(learner.average_precision),
        score(learner.edgebank_average_precision),
        score(learner.loss.map(f64::from)),
        milliseconds(learner.end_to_end_freshness_p99_seconds),
        mebibytes(status.resident_bytes),
    )
}

/// A time for people.
pub(super) fn milliseconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{:.0} ms", seconds * 1000.0))
}

/// A size for people.
#[allow(clippy::cast_precision_loss)]
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
