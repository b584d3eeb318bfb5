//! `evergraph bench start`: how long a daemon with a long log takes to become ready.
//!
//! A log is written with the file's events, repeated, in frames as of a busy stream. A daemon processes it to the end
//! without training, which is not timed, and is stopped, so that its checkpoint is at the end. Then:
//!
//! ```text
//! open       the data directory: recovery of the log, the catalog
//! rebuild    the graph, names and positions from the log
//! ready      all of a start, up to the first request: both of the above, the baseline of quality from the
//!            log once more, the checkpoint, HTTP
//! ```
//! Files are in the page cache, as after a restart of the daemon alone.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::folder::Folder;
use super::source::Source;
use super::{Common, Spread, daemon_config, deliver, seconds};
use crate::cli::events::read_stream;
use crate::cli::output;
use crate::config::Config;
use crate::daemon::{Daemon, Starting, Store, log_level, resident_bytes};
use crate::event::{EdgeBatch, EdgeId, NodeKey};
use crate::log::{Frame, Log, LogOptions};
use crate::metrics::Metrics;

/// Events of a frame: a stream of 25,000 per second that is submitted every 20 ms.
const FRAME_EVENTS: usize = 500;
/// Frames per sync.
const COMMIT_FRAMES: usize = 200;

/// The log to start on.
#[derive(Debug, Args)]
pub(super) struct StartArgs {
    #[command(flatten)]
    common: Common,
    /// Copies of the file, one after another in time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Folder for the log that is written; a temporary folder if not given
    #[arg(long, value_name = "DIR")]
    data: Option<std::path::PathBuf>,
    /// Any setting of the daemon, for example --set model.kind=graphmixer
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Serialize)]
struct Figures {
    events: usize,
    nodes: usize,
    repeat: u32,
    log_bytes: u64,
    resident_bytes: u64,
    open_seconds: Spread,
    rebuild_seconds: Spread,
    ready_seconds: Spread,
    events_per_second: f64,
}

/// Runs the benchmark.
#[allow(clippy::cast_precision_loss)] // counts of events fit
pub(super) fn run(args: &StartArgs) -> anyhow::Result<()> {
    let stream = read_stream(&args.common.events, &mut |note| output::print_status(note))?;
    let source = Source::new(&stream, args.repeat, FRAME_EVENTS)?;
    let folder = Folder::new(args.data.as_deref())?;
    let config = args.config(folder.path(), &[])?;
    log_level::start(&config.output)?;
    output::print_status(&format!("writing a log of {} events …", source.events()));
    write(&source, &folder.path().join("log"), config.log.segment_bytes)?;
    learn(args, folder.path(), source.events())?;

    let (mut open, mut rebuild, mut ready, mut resident) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for run in 0..args.common.runs {
        let (spent, store) = seconds(|| Store::open(&config));
        open.push(spent);
        let mut store = store?;
        let starting = Starting { interrupt: &AtomicBool::new(false), metrics: &Metrics::new() };
        let (spent, rebuilt) = seconds(|| store.rebuild(EdgeId(source.events() as u64), &starting));
        rebuilt?;
        rebuild.push(spent);
        drop(store);
        let (spent, daemon) = seconds(|| Daemon::start(&config, None, &AtomicBool::new(false)));
        let daemon = daemon?;
        ready.push(spent);
        if run == 0 {
            resident = resident_bytes();
        }
        let applied = daemon.status().learner.applied_position;
        ensure!(
            applied == source.events() as u64,
            "the daemon continued at {applied} instead of {}",
            source.events()
        );
        daemon.stop()?;
    }
    let ready = Spread::of(ready);
    let figures = Figures {
        events: source.events(),
        nodes: stream.nodes(),
        repeat: args.repeat,
        log_bytes: folder_bytes(&folder.path().join("log"))?,
        resident_bytes: resident,
        open_seconds: Spread::of(open),
        rebuild_seconds: Spread::of(rebuild),
        ready_seconds: ready,
        events_per_second: source.events() as f64 / ready.median,
    };
    output::print_status(&format!(
        "{} events of {} nodes, a log of {} MB: ready after {:.2} s ({:.2} to {:.2}), of which opening {:.2} s and the \
         graph {:.2} s; {:.2} M events/s",
        figures.events,
        figures.nodes,
        figures.log_bytes / 1_000_000,
        ready.median,
        ready.min,
        ready.max,
        figures.open_seconds.median,
        figures.rebuild_seconds.median,
        figures.events_per_second / 1e6,
    ));
    deliver(args.common.json.as_deref(), "start", rayon::current_num_threads(), figures)
}

impl StartArgs {
    /// The daemon's settings, with `more` before those of the command line.
    fn config(&self, data: &Path, more: &[&str]) -> anyhow::Result<Config> {
        let more = ["stream.edge_feature_dimension=0"].iter().chain(more).map(|pair| (*pair).to_owned());
        daemon_config(data, &more.collect::<Vec<_>>(), &self.set)
    }
}

/// Writes all events as a log in `folder`, with a name for every node.
fn write(source: &Source<'_>, folder: &Path, segment_bytes: u64) -> anyhow::Result<()> {
    let (mut log, _) = Log::open(LogOptions { dir: folder.to_path_buf(), segment_bytes })?;
    let (mut batch, mut named, mut frames) = (EdgeBatch::default(), 0, 0);
    source.timed(&mut batch, |batch| {
        let ends = batch.src.iter().chain(&batch.dst).map(|node| node.index() + 1);
        let nodes = ends.max().unwrap_or(0).max(named);
        let new_keys = (named..nodes).map(|node| NodeKey::from_text(&format!("node-{node}"))).collect();
        named = nodes;
        let frame = Frame { batch: std::mem::take(batch), new_keys, ..Frame::default() };
        log.append(&frame)?;
        frames += 1;
        if frames % COMMIT_FRAMES == 0 {
            log.commit()?;
        }
        *batch = frame.batch;
        Ok(())
    })?;
    log.commit()?;
    Ok(())
}

/// Lets a daemon process the log to its end, as fast as it can, and write its checkpoint.
fn learn(args: &StartArgs, data: &Path, events: usize) -> anyhow::Result<()> {
    let config = args.config(data, &["learner.train=false", "learner.lag_events_max=1"])?;
    let daemon = Daemon::start(&config, None, &AtomicBool::new(false))?;
    let bar = ProgressBar::new(events as u64);
    // The template is a constant; the default style would do as well.
    bar.set_style(
        ProgressStyle::with_template(
            "to the end of the log [{bar:30}] {human_pos}/{human_len} events, {eta} left",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    loop {
        let applied = daemon.status().learner.applied_position;
        bar.set_position(applied);
        if applied == events as u64 {
            break;
        }
        if let Some(fault) = daemon.fault() {
            bail!("the daemon that processes the log has failed: {fault}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bar.finish_and_clear();
    daemon.stop()
}

/// Bytes of the files in `folder`.
fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
