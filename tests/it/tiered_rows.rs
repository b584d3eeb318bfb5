//! Rows in memory and in a real file, through every engine that works here; and how fast they come.

use std::time::{Duration, Instant};

use evergraph::device::disk::{EngineChoice, SpillFile};
use evergraph::device::rng::random_u64;
use evergraph::feature::{Announced, FeatureStore, TieredRows};

const DIMENSION: usize = 172;

fn file(folder: &tempfile::TempDir, choice: EngineChoice) -> Option<Box<SpillFile>> {
    match SpillFile::create(folder.path(), "rows", choice) {
        Ok(file) => Some(Box::new(file)),
        Err(error) if choice == EngineChoice::IoUring => {
            super::skip::skipped(&format!("reading rows through io_uring: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn row(index: u64) -> [f32; DIMENSION] {
    std::array::from_fn(|i| (index * 7 % 10_007) as f32 + i as f32 * 0.5)
}

#[test]
fn rows_come_back_from_a_real_file() {
    for choice in [EngineChoice::Pread, EngineChoice::IoUring] {
        let folder = tempfile::tempdir().unwrap();
        let Some(file) = file(&folder, choice) else { continue };
        let rows = TieredRows::new(DIMENSION, 0, file).unwrap();
        let count = 5 * rows.stats().budget_bytes / 688;
        for index in 0..count {
            rows.set(index, &row(index)).unwrap();
        }
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let rows = &rows;
                scope.spawn(move || {
                    let mut out = vec![0.0; 500 * DIMENSION];
                    for round in 0..10 {
                        let draw = |i| random_u64([reader, round, i, 0]) % count;
                        let indices: Vec<u64> = (0..500).map(draw).collect();
                        let held = (reader == 0).then(|| rows.announce(&indices));
                        rows.gather(&indices, &mut out).unwrap();
                        drop(held);
                        for (index, found) in indices.iter().zip(out.chunks(DIMENSION)) {
                            assert_eq!(found, row(*index), "row {index}");
                        }
                    }
                });
            }
        });
        let stats = rows.stats();
        assert!(stats.reads > 500 && stats.failures == 0 && stats.disk_bytes > 0, "{stats:?}");
    }
}

const ROWS: u64 = 1_000_000;
const BATCH: usize = 3_000;
const BATCHES: u64 = 150;

/// Gathers batches of random rows, each followed by `work`; gives rows per second and the share of time waited.
fn gather(rows: &TieredRows, term: u64, ahead: bool, work: Duration) -> (f64, f64) {
    let indices =
        |batch| -> Vec<u64> { (0..BATCH as u64).map(|i| random_u64([batch, i, term, 0]) % ROWS).collect() };
    let announce = |batch| -> Option<Announced> { ahead.then(|| rows.announce(&indices(batch))) };
    let mut out = vec![0.0; BATCH * DIMENSION];
    let before = rows.stats();
    let started = Instant::now();
    let mut held = announce(0);
    for batch in 0..BATCHES {
        let next = announce(batch + 1);
        rows.gather(&indices(batch), &mut out).unwrap();
        drop(std::mem::replace(&mut held, next));
        std::thread::sleep(work);
    }
    let seconds = started.elapsed().as_secs_f64();
    let after = rows.stats();
    assert_eq!(out[(BATCH - 1) * DIMENSION..], row(indices(BATCHES - 1)[BATCH - 1]));
    let hits = (after.hits - before.hits) as f64 / (BATCHES * BATCH as u64) as f64;
    let waited = (after.gather_wait_seconds - before.gather_wait_seconds) / seconds;
    let rate = (BATCHES * BATCH as u64) as f64 / (seconds - BATCHES as f64 * work.as_secs_f64()).max(1e-9);
    eprintln!(
        "  ahead {ahead}, {work:?} of work a batch: {rate:.0} rows per second of what work leaves, \
         {:.0} % of the time waited, {:.0} % found in memory",
        waited * 100.0,
        hits * 100.0
    );
    (rate, waited)
}

#[test]
#[ignore = "measures: a million rows of 688 bytes in a file, a quarter of them in memory"]
fn rows_per_second_with_and_without_announcing() {
    let all = FeatureStore::new(DIMENSION);
    let started = Instant::now();
    for index in 0..ROWS {
        let _ = all.set(index, &row(index));
    }
    eprintln!("in memory: {:.0} rows set per second", ROWS as f64 / started.elapsed().as_secs_f64());
    let mut out = vec![0.0; BATCH * DIMENSION];
    let started = Instant::now();
    for batch in 0..BATCHES {
        let indices: Vec<u64> = (0..BATCH as u64).map(|i| random_u64([batch, i, 0, 0]) % ROWS).collect();
        all.gather(&indices, &mut out);
    }
    let rate = (BATCHES * BATCH as u64) as f64 / started.elapsed().as_secs_f64();
    eprintln!("in memory: {rate:.0} rows gathered per second");
    drop(all);
    for choice in [EngineChoice::Pread, EngineChoice::IoUring] {
        let folder = tempfile::tempdir().unwrap();
        let Some(file) = file(&folder, choice) else { continue };
        let rows = TieredRows::new(DIMENSION, ROWS * 688 / 4, file).unwrap();
        let started = Instant::now();
        for index in 0..ROWS {
            rows.set(index, &row(index)).unwrap();
        }
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("{}: {:.0} rows set per second", rows.stats().engine, ROWS as f64 / seconds);
        let work = Duration::from_millis(60);
        for (term, ahead, work) in
            [(1, false, Duration::ZERO), (2, true, Duration::ZERO), (3, false, work), (4, true, work)]
        {
            gather(&rows, term, ahead, work);
        }
        let stats = rows.stats();
        assert!(stats.resident_bytes <= stats.budget_bytes + stats.budget_bytes / 64, "{stats:?}");
        eprintln!("  {stats:?}");
    }
}
