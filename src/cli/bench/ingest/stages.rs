//! Where the time of an apply goes, beside what it could not be below on this machine.
//!
//! The floor of a stage is the bytes it has to read and write, divided by the rate at which memory is copied here.
//! Columns are read in their order, words once and written once per pass; adding to a node reads and writes a cache
//! line of its list, one of its last block's description and the lines of its new entries.

use hashbrown::HashSet;
use serde::Serialize;

use super::Source;
use crate::cli::bench::{Spread, seconds};
use crate::cli::output;
use crate::event::EdgeBatch;
use crate::graph::{StageSeconds, StagedStore};

const LINE_BYTES: f64 = 64.0;
const COPIED_BYTES: usize = 256 << 20;

/// Mean seconds of a batch by stage, on one thread, of the run whose total is the median.
#[derive(Serialize)]
pub(super) struct Stages {
    stage_seconds: Parts,
    stage_floor_seconds: Parts,
    stage_nanoseconds_per_entry: Spread,
    copy_bytes_per_second: f64,
}

#[derive(Serialize)]
struct Parts {
    count: f64,
    name: f64,
    sort: f64,
    lock: f64,
    fill: f64,
    total: f64,
}

impl Parts {
    fn of(seconds: StageSeconds, scale: f64) -> Self {
        let total = seconds.total() * scale;
        let StageSeconds { count, name, sort, lock, fill } = seconds;
        let [count, name, sort, lock, fill] = [count, name, sort, lock, fill].map(|part| part * scale);
        Self { count, name, sort, lock, fill, total }
    }
}

/// Measures `runs` fresh stores.
#[allow(clippy::cast_precision_loss)] // counts of a benchmark fit
pub(super) fn measure(source: &Source<'_>, batch: &mut EdgeBatch, runs: u32) -> Stages {
    let copied = copy_bytes_per_second();
    let batches = source.events().div_ceil(source.batch_events) as f64;
    let mut entries = 0;
    let mut measured: Vec<StageSeconds> = (0..runs)
        .map(|_| {
            let mut store = StagedStore::new(source.options);
            source.each(batch, |batch| store.apply(batch));
            entries = store.entries();
            store.seconds()
        })
        .collect();
    measured.sort_by(|a, b| a.total().total_cmp(&b.total()));
    let median = measured.get(measured.len() / 2).copied().unwrap_or_default();
    let stages = Stages {
        stage_seconds: Parts::of(median, 1.0 / batches),
        stage_floor_seconds: Parts::of(floor_bytes(source, batch), 1.0 / copied / batches),
        stage_nanoseconds_per_entry: Spread::of(
            measured.iter().map(|run| run.total() * 1e9 / entries.max(1) as f64),
        ),
        copy_bytes_per_second: copied,
    };
    let (took, floor) = (&stages.stage_seconds, &stages.stage_floor_seconds);
    output::tell(&format!(
        "a batch on one thread: count {:.1} ms, name {:.1}, sort {:.1}, locks {:.2}, fill {:.1}; the bytes alone: \
         count {:.1}, name {:.1}, sort {:.1}, fill {:.1}",
        took.count * 1e3,
        took.name * 1e3,
        took.sort * 1e3,
        took.lock * 1e3,
        took.fill * 1e3,
        floor.count * 1e3,
        floor.name * 1e3,
        floor.sort * 1e3,
        floor.fill * 1e3,
    ));
    stages
}

/// Bytes that the stages have to move, over all batches.
#[allow(clippy::cast_precision_loss)]
fn floor_bytes(source: &Source<'_>, batch: &mut EdgeBatch) -> StageSeconds {
    let mut bytes = StageSeconds::default();
    source.each(batch, |batch| {
        let (records, entries) = (batch.len() as f64, 2.0 * batch.len() as f64);
        let nodes: HashSet<_> = batch.src.iter().chain(&batch.dst).collect();
        // Operation, both ends, time.
        bytes.count += records * 17.0;
        // Operation and both ends, twice, and a word for each entry.
        bytes.name += records * 18.0 + entries * 8.0;
        // Two passes, each of which counts, then moves.
        bytes.sort += entries * 2.0 * 24.0;
        // Word, neighbor, time, entry.
        bytes.fill += entries * (8.0 + 12.0 + 12.0) + nodes.len() as f64 * 2.0 * 2.0 * LINE_BYTES;
    });
    bytes
}

/// Bytes read and written per second when memory is copied by one thread.
#[allow(clippy::cast_precision_loss)]
fn copy_bytes_per_second() -> f64 {
    let (from, mut to) = (vec![1_u8; COPIED_BYTES], vec![0_u8; COPIED_BYTES]);
    let rates = (0..5).map(|_| {
        let (spent, ()) = seconds(|| to.copy_from_slice(std::hint::black_box(&from)));
        std::hint::black_box(&to);
        2.0 * COPIED_BYTES as f64 / spent
    });
    Spread::of(rates).max
}
