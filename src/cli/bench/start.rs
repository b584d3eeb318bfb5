//! `evergraph bench start`: how long a daemon with a long log takes to become ready.
//!
//! A log is written with the file's events, repeated, in frames as of a busy stream. A daemon processes it to the end
//! without training, writes a snapshot there, which is not timed, and is stopped, so that its checkpoint is at the end,
//! too. With a tail, so many events are then added to the log, which no snapshot and no checkpoint has. Then:
//!
//! ```text
//! open       the data directory: recovery of the log, the catalog
//! rebuild    the graph, names and positions from the newest snapshot, if there is one, and the log behind it
//! ready      all of a start, up to the first request: both of the above, the checkpoint, HTTP
//! ```
//! Files are in the page cache, as after a restart of the daemon alone; with `--cold` they are not, as after one of the
//! machine. Then the snapshot's files are also read alone, one after another, which is the rate to compare with.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::source::Source;
use super::{Common, DaemonArgs, Spread, deliver, seconds};
use crate::appender::snapshot;
use crate::cli::events::read_stream;
use crate::cli::output;
use crate::config::Config;
use crate::daemon::{Daemon, Starting, Store, log_level, resident_bytes};
use crate::event::{EdgeBatch, EdgeId, NodeKey};
use crate::graph::{Keeping, RetentionBounds};
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
    /// Events behind the snapshot and the checkpoint
    #[arg(long, default_value_t = 0, value_name = "EVENTS")]
    tail: usize,
    /// Start from the log alone
    #[arg(long)]
    no_snapshot: bool,
    /// Read the files from the disk, as after a restart of the machine, not from the kernel's cache
    #[arg(long)]
    cold: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

#[derive(Serialize)]
struct Figures {
    events: usize,
    nodes: usize,
    repeat: u32,
    tail_events: usize,
    log_bytes: u64,
    /// 0 without a snapshot.
    snapshot_bytes: u64,
    resident_bytes: u64,
    open_seconds: Spread,
    rebuild_seconds: Spread,
    ready_seconds: Spread,
    events_per_second: f64,
    /// With `--cold`: how fast the snapshot's files are read alone, and loaded into the graph with the log behind them.
    disk: Option<Disk>,
}

/// Bytes per second.
#[derive(Serialize)]
struct Disk {
    sequential_bytes_per_second: f64,
    loaded_bytes_per_second: f64,
}

impl Figures {
    fn print(&self) {
        output::print_status(&format!(
            "{} events of {} nodes, {} of them behind the snapshot of {} MB, a log of {} MB: ready after {:.2} s \
             ({:.2} to {:.2}), of which opening {:.2} s and the graph {:.2} s",
            self.events,
            self.nodes,
            self.tail_events,
            self.snapshot_bytes / 1_000_000,
            self.log_bytes / 1_000_000,
            self.ready_seconds.median,
            self.ready_seconds.min,
            self.ready_seconds.max,
            self.open_seconds.median,
            self.rebuild_seconds.median,
        ));
        if let Some(disk) = &self.disk {
            output::print_status(&format!(
                "from the disk, which reads {:.0} MB/s: {:.0} MB/s of snapshot and log, {:.0} %",
                disk.sequential_bytes_per_second / 1e6,
                disk.loaded_bytes_per_second / 1e6,
                100.0 * disk.loaded_bytes_per_second / disk.sequential_bytes_per_second,
            ));
        }
    }
}

/// Runs the benchmark.
#[allow(clippy::cast_precision_loss)] // counts of events fit
pub(super) fn run(args: &StartArgs) -> anyhow::Result<()> {
    let stream = read_stream(&args.common.events, &mut |note| output::print_status(note))?;
    let source = Source::new(&stream, args.repeat, FRAME_EVENTS)?;
    let folder = args.daemon.folder()?;
    let config = args.config(folder.path(), &[])?;
    log_level::start(&config.output)?;
    output::print_status(&format!("writing a log of {} events …", source.events()));
    ensure!(
        args.tail < source.events(),
        "--tail {} is not less than the {} events",
        args.tail,
        source.events()
    );
    // Whole frames, of which the last of all may be shorter.
    let learned = match args.tail {
        0 => source.events(),
        tail => (source.events() - tail) / FRAME_EVENTS * FRAME_EVENTS,
    };
    let segment_bytes = config.log.segment_bytes;
    write(&source, folder.path(), segment_bytes, 0..learned)?;
    learn(args, folder.path(), learned)?;
    let log = folder.path().join("log");
    let before = folder_bytes(&log)?;
    write(&source, folder.path(), segment_bytes, learned..source.events())?;
    let tail_bytes = if args.no_snapshot { folder_bytes(&log)? } else { folder_bytes(&log)? - before };

    let Starts { open, rebuild, ready, resident } = starts(args, &config, folder.path(), learned)?;
    let (ready, rebuild) = (Spread::of(ready), Spread::of(rebuild));
    let snapshot = snapshot_of(folder.path(), learned);
    let snapshot_bytes = if args.no_snapshot { 0 } else { folder_bytes(&snapshot)? };
    let disk = match args.cold {
        true => Some(Disk {
            sequential_bytes_per_second: sequential_rate(folder.path())?,
            loaded_bytes_per_second: (snapshot_bytes + tail_bytes) as f64 / rebuild.median,
        }),
        false => None,
    };
    let figures = Figures {
        events: source.events(),
        nodes: stream.nodes(),
        repeat: args.repeat,
        tail_events: source.events() - learned,
        log_bytes: folder_bytes(&folder.path().join("log"))?,
        snapshot_bytes,
        resident_bytes: resident,
        open_seconds: Spread::of(open),
        rebuild_seconds: rebuild,
        ready_seconds: ready,
        events_per_second: source.events() as f64 / ready.median,
        disk,
    };
    figures.print();
    deliver(args.common.json.as_deref(), "start", rayon::current_num_threads(), figures)
}

/// Seconds of the parts of each start, and what a daemon takes of memory after the first.
#[derive(Default)]
struct Starts {
    open: Vec<f64>,
    rebuild: Vec<f64>,
    ready: Vec<f64>,
    resident: u64,
}

/// Times the starts of a daemon on `data`, of which `learned` events are learned.
fn starts(args: &StartArgs, config: &Config, data: &Path, learned: usize) -> anyhow::Result<Starts> {
    let mut starts = Starts::default();
    for run in 0..args.common.runs {
        args.settle(data)?;
        let (spent, store) = seconds(|| Store::open(config));
        starts.open.push(spent);
        let mut store = store?;
        // Opening reads the end of the log.
        args.settle(data)?;
        let starting = Starting { interrupt: &AtomicBool::new(false), metrics: &Metrics::new() };
        let (spent, rebuilt) =
            seconds(|| store.rebuild(Keeping::Within(RetentionBounds::default()), &starting));
        rebuilt?;
        starts.rebuild.push(spent);
        drop(store);
        args.settle(data)?;
        let (spent, daemon) = seconds(|| Daemon::start(config, None, &AtomicBool::new(false)));
        let daemon = daemon?;
        starts.ready.push(spent);
        if run == 0 {
            starts.resident = resident_bytes();
        }
        let applied = daemon.status().learner.applied_position;
        ensure!(applied >= learned as u64, "the daemon continued at {applied} instead of {learned}");
        daemon.stop()?;
    }
    Ok(starts)
}

impl StartArgs {
    /// What is to come before each part that is timed.
    fn settle(&self, data: &Path) -> anyhow::Result<()> {
        if self.cold { forget(data) } else { Ok(()) }
    }

    /// The daemon's settings, with `more` before those of the command line.
    fn config(&self, data: &Path, more: &[&str]) -> anyhow::Result<Config> {
        let more = ["stream.edge_feature_dimension=0"].iter().chain(more).map(|pair| (*pair).to_owned());
        self.daemon.config(data, &more.collect::<Vec<_>>())
    }
}

/// The folder of the snapshot behind so many events.
fn snapshot_of(data: &Path, events: usize) -> PathBuf {
    data.join("snapshots").join(snapshot::name(EdgeId(events as u64)))
}

/// Adds the events `range` to the log below `data`, with a name for every node.
fn write(source: &Source<'_>, data: &Path, segment_bytes: u64, range: Range<usize>) -> anyhow::Result<()> {
    let (mut log, _) = Log::open(LogOptions { dir: data.join("log"), segment_bytes })?;
    let (mut batch, mut named, mut frames) = (EdgeBatch::default(), 0, 0);
    source.timed(&mut batch, |batch| {
        let ends = batch.src.iter().chain(&batch.dst).map(|node| node.index() + 1);
        let nodes = ends.max().unwrap_or(0).max(named);
        let new_keys = (named..nodes).map(|node| NodeKey::from_text(&format!("node-{node}"))).collect();
        named = nodes;
        let (first, end) = (batch.first.0 as usize, batch.end().0 as usize);
        // Frames of the other part.
        if first < range.start || end > range.end {
            return Ok(());
        }
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
    // A file beside the work, as in a busy daemon, but not one for every gigabyte.
    let snapshots = if args.no_snapshot { "31536000" } else { "1" };
    let snapshots = format!("snapshot.interval_seconds={snapshots}");
    let plain = ["snapshot.log_bytes=9000000000000000000", "io.bytes_per_second_max=0", snapshots.as_str()];
    let config =
        args.config(data, &[&["learner.train=false", "learner.lag_events_max=1"][..], &plain].concat())?;
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
        if applied == events as u64 && (args.no_snapshot || snapshot_of(data, events).exists()) {
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

/// The files below `folder`.
fn files_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        match kind.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

/// Takes the files below `data` out of the kernel's cache.
fn forget(data: &Path) -> anyhow::Result<()> {
    for path in files_below(data)? {
        let file = File::open(&path)?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Bytes per second of reading the snapshots below `data`, or the log where there is none, one file after another.
fn sequential_rate(data: &Path) -> anyhow::Result<f64> {
    forget(data)?;
    let mut files = files_below(&data.join("snapshots"))?;
    if files.is_empty() {
        files = files_below(&data.join("log"))?;
    }
    let mut buffer = vec![0; 1 << 20];
    let (spent, bytes) = seconds(|| -> anyhow::Result<usize> {
        let mut bytes = 0;
        for path in files {
            let mut file = File::open(path)?;
            fadvise(&file, 0, None, Advice::Sequential)?;
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    read => bytes += read,
                }
            }
        }
        Ok(bytes)
    });
    Ok(bytes? as f64 / spent)
}

/// Bytes of the files in `folder`.
fn folder_bytes(folder: &Path) -> anyhow::Result<u64> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
