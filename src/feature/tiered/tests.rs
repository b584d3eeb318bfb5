//! The rows against a plain map: with memory for few of them, with a disk that fails and corrupts, and with many
//! threads at once. What is gathered is what was set, bit for bit, or an error. A failing case prints its seed;
//! `SEED=n` runs that one.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::device::disk::tests::faulty::{Fault, Faulty, Operation};
use crate::device::rng::random_u64;

/// So small that a few hundred rows already spill.
const BATCH: usize = 16 * 1024;

fn rows_on(file: &Faulty, dimension: usize, budget: u64) -> TieredRows {
    TieredRows::with_batch(dimension, budget, BATCH, Box::new(file.clone())).unwrap()
}

fn works(_: Operation) -> Fault {
    Fault::Works
}

fn row(index: u64, version: u64, dimension: usize) -> Vec<f32> {
    (0..dimension as u64).map(|i| (random_u64([index, version, i, 0]) >> 40) as f32 - 1000.5).collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Memory beyond the budget that the statistics allow: buffers of gathers, and the store itself.
fn slack(stats: &RowStats) -> u64 {
    stats.budget_bytes / 64 + 4 * BATCH as u64 + 4096
}

/// Whatever the disk does not hold is in the writer's queue, as soon as the writer is idle.
fn nothing_is_left_behind(rows: &TieredRows) {
    wait_until("every unit that waits to be written is in the queue", || {
        let cache = rows.shared.cache.read();
        let queued: HashSet<u64> = cache.queue.iter().copied().collect();
        let mut dirty = cache.segments.iter().flat_map(|segment| &segment.slots).filter(|slot| slot.dirty);
        dirty.all(|slot| queued.contains(&rows.shared.shape.block_of(slot.unit)))
    });
}

/// Random operations on the store and on a map; returns how many gathers failed.
fn compare_with_a_map(seed: u64, dimension: usize, operations: u64, file: &Faulty) -> usize {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(seed);
    let rows = rows_on(file, dimension, 0);
    let mut model: HashMap<u64, Vec<f32>> = HashMap::new();
    let mut announced = Vec::new();
    let (mut end, mut failed) = (0, 0);
    // About four times what memory holds.
    let most = (4 * rows.stats().budget_bytes / (4 * dimension as u64)).min(60_000);
    for operation in 0..operations {
        let draw = |i, bound: u64| random_u64([seed, operation, i, 9]) % bound;
        let indices = |count| (0..count).map(|i| draw(10 + i, end + 20)).collect::<Vec<u64>>();
        match draw(0, 10) {
            0..4 => {
                for _ in 0..draw(1, 1 + most / operations * 4) {
                    let row = row(end, operation, dimension);
                    rows.set(end, &row).unwrap();
                    model.insert(end, row);
                    end += 1 + draw(end, 5) / 4;
                }
            }
            4 => {
                for index in indices(draw(1, 30)) {
                    let row = row(index, operation, dimension);
                    rows.set(index, &row).unwrap();
                    model.insert(index, row);
                }
            }
            5 => {
                for index in indices(draw(1, 20)) {
                    rows.clear(index);
                    model.remove(&index);
                }
            }
            6 => announced.push(rows.announce(&indices(draw(1, 200)))),
            7 => announced.truncate(draw(1, 4) as usize),
            _ => {
                let mut requested = indices(draw(1, 200));
                requested.push(u64::MAX);
                let mut out = vec![f32::NAN; requested.len() * dimension];
                if rows.gather(&requested, &mut out).is_err() {
                    failed += 1;
                    continue;
                }
                for (index, found) in requested.iter().zip(out.chunks(dimension)) {
                    let zeros = vec![0.0; dimension];
                    let expected = model.get(index).unwrap_or(&zeros);
                    assert!(
                        found == expected,
                        "seed {seed}, operation {operation}, row {index} of {dimension}"
                    );
                }
            }
        }
        let stats = rows.stats();
        let in_bounds = stats.resident_bytes <= stats.budget_bytes + slack(&stats);
        assert!(in_bounds || stats.state != RowState::Ok || stats.failures > 0, "seed {seed}: {stats:?}");
    }
    drop(announced);
    nothing_is_left_behind(&rows);
    let cache = rows.shared.cache.read();
    let pins = cache.segments.iter().flat_map(|segment| &segment.slots);
    // The thread may still be at an announcement that was dropped, but pins nothing for it.
    assert_eq!(
        pins.map(|slot| slot.pins.load(Ordering::Relaxed)).sum::<u32>(),
        0,
        "seed {seed}: pins are left"
    );
    assert_eq!(rows.shared.announced.load(Ordering::Relaxed), 0, "seed {seed}");
    failed
}

#[test]
fn random_operations_give_what_a_map_gives() {
    for (seed, dimension) in [1, 3, 4, 100, 172, 172, 172, 1100, 2000].into_iter().enumerate() {
        let file = Faulty::new(works);
        assert_eq!(compare_with_a_map(seed as u64, dimension, 400, &file), 0, "seed {seed}");
        assert!(
            file.operations().1 > 5 && file.operations().0 > 20,
            "nothing spilled: {:?}",
            file.operations()
        );
    }
}

#[test]
fn a_disk_that_fails_and_lies_gives_errors_and_never_wrong_rows() {
    let (mut failed, mut lies) = (0, 0);
    for seed in 0..12 {
        let dimension = [4, 100, 172, 1100][seed as usize % 4];
        // From disks that mostly work to one that never writes.
        let rate = [50, 10, 300][seed as usize % 3];
        let file = Faulty::new(move |operation: Operation| {
            let draw = random_u64([seed, operation.number, operation.writes.into(), 77]);
            match draw % rate {
                0 => Fault::Fails(if operation.writes { ErrorKind::StorageFull } else { ErrorKind::Other }),
                1 => Fault::Torn,
                2 => Fault::Lost,
                _ => Fault::Works,
            }
        });
        failed += compare_with_a_map(100 + seed, dimension, 250, &file);
        lies += file.operations().0;
    }
    assert!(failed > 10 && lies > 100, "{failed} gathers of {lies} reads failed: nothing was tested");
}

#[test]
fn a_full_disk_costs_memory_but_no_row_and_when_it_has_room_again_all_is_well() {
    let full = Arc::new(AtomicBool::new(true));
    let is_full = Arc::clone(&full);
    let file = Faulty::new(move |operation: Operation| match operation.writes {
        true if is_full.load(Ordering::Relaxed) => Fault::Fails(ErrorKind::StorageFull),
        _ => Fault::Works,
    });
    let rows = rows_on(&file, 172, 0);
    let count = 4 * rows.stats().budget_bytes / 688;
    for index in 0..count {
        rows.set(index, &row(index, 0, 172)).unwrap();
    }
    let stats = rows.stats();
    assert!(matches!(&stats.state, RowState::Degraded(why) if why.contains("writing")), "{stats:?}");
    assert!(stats.failures > 0 && stats.resident_bytes > 3 * stats.budget_bytes, "{stats:?}");
    let all = |rows: &TieredRows| {
        let mut out = vec![0.0; 172];
        for index in 0..count {
            rows.gather(&[index], &mut out).unwrap();
            assert_eq!(out, row(index, 0, 172), "row {index}");
        }
    };
    all(&rows);
    full.store(false, Ordering::Relaxed);
    wait_until("all is well again", || {
        let stats = rows.stats();
        stats.state == RowState::Ok && stats.resident_bytes <= stats.budget_bytes + slack(&stats)
    });
    all(&rows);
}

#[test]
fn a_write_that_fails_half_way_over_old_rows_loses_none_of_their_neighbors_in_the_block() {
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let file = Faulty::new(move |operation: Operation| match operation.writes {
        true if is_broken.load(Ordering::Relaxed) => Fault::Fails(ErrorKind::Other),
        _ => Fault::Works,
    });
    for dimension in [16, 172] {
        broken.store(false, Ordering::Relaxed);
        let rows = rows_on(&file, dimension, 0);
        let count = 6 * rows.stats().budget_bytes / (4 * dimension as u64);
        for index in 0..count {
            rows.set(index, &row(index, 0, dimension)).unwrap();
        }
        broken.store(true, Ordering::Relaxed);
        for index in (0..count / 2).step_by(23) {
            rows.set(index, &row(index, 1, dimension)).unwrap();
        }
        // What is cleared has to be written soon, with all that waits.
        rows.clear(1);
        wait_until("a write fails", || rows.stats().state != RowState::Ok);
        let mut out = vec![0.0; dimension];
        for index in (0..count).filter(|index| *index != 1) {
            rows.gather(&[index], &mut out).unwrap();
            let version = u64::from(index < count / 2 && index % 23 == 0);
            assert_eq!(out, row(index, version, dimension), "row {index} of {dimension}");
        }
    }
}

#[test]
fn a_damaged_block_is_named() {
    let lost = |operation: Operation| match operation.writes && operation.extent.page == 0 {
        true => Fault::Lost,
        false => Fault::Works,
    };
    let rows = rows_on(&Faulty::new(lost), 172, 0);
    let mut out = vec![0.0; 172];
    let mut next = 0;
    wait_until("row 0 leaves memory", || {
        for _ in 0..100 {
            rows.set(next, &row(next, 0, 172)).unwrap();
            next += 1;
        }
        rows.gather(&[0], &mut out).is_err()
    });
    let error = rows.gather(&[3, 2], &mut [0.0; 344]).unwrap_err();
    assert!(matches!(error, RowError::Damaged { offset: 0, .. }), "{error}");
    assert!(rows.stats().failures >= 2);
}

#[test]
fn what_was_cleared_leaves_no_trace_on_disk() {
    for dimension in [8, 172] {
        let file = Faulty::new(works);
        let rows = rows_on(&file, dimension, 0);
        let count = 4 * rows.stats().budget_bytes / (4 * dimension as u64);
        for index in 0..count {
            rows.set(index, &row(index, 0, dimension)).unwrap();
        }
        // Long ago, being written now, and only in memory.
        let forgotten = [0, 7, count / 2, count - 300, count - 1];
        let bytes = |index| bytemuck::cast_slice::<f32, u8>(&row(index, 0, dimension)).to_vec();
        assert!(file.contains(&bytes(0)), "nothing spilled");
        for index in forgotten {
            rows.clear(index);
        }
        wait_until("the bytes are gone", || !forgotten.iter().any(|index| file.contains(&bytes(*index))));
        let mut out = vec![1.0; dimension];
        for index in forgotten {
            rows.gather(&[index], &mut out).unwrap();
            assert!(out.iter().all(|value| *value == 0.0));
        }
        rows.gather(&[1], &mut out).unwrap();
        assert_eq!(out, row(1, 0, dimension), "beside a forgotten row");
    }
}

#[test]
fn announced_rows_are_there_when_they_are_gathered_and_too_many_are_ignored() {
    let file = Faulty::new(|operation: Operation| match operation.writes {
        true => Fault::Works,
        false => Fault::Slow(Duration::from_micros(200)),
    });
    let rows = rows_on(&file, 172, 0);
    let count = 8 * rows.stats().budget_bytes / 688;
    for index in 0..count {
        rows.set(index, &row(index, 0, 172)).unwrap();
    }
    let draw = |batch, i| random_u64([batch, i, 0, 5]) % count;
    let mut out = vec![0.0; 15 * 172];
    for batch in 0..20 {
        let indices: Vec<u64> = (0..15).map(|i| draw(batch, i)).collect();
        let held = rows.announce(&indices);
        wait_until("the announcement is ready", || held.is_ready());
        // Others come and go meanwhile.
        for i in 0..400 {
            rows.gather(&[draw(1000 + batch, i)], &mut out[..172]).unwrap();
        }
        let before = rows.stats();
        rows.gather(&indices, &mut out).unwrap();
        let after = rows.stats();
        assert_eq!((after.misses - before.misses, after.announced_hits - before.announced_hits), (0, 15));
        for (index, found) in indices.iter().zip(out.chunks(172)) {
            assert_eq!(found, row(*index, 0, 172));
        }
    }
    let everything: Vec<u64> = (0..count).collect();
    let held = rows.announce(&everything);
    wait_until("the announcement is ready", || held.is_ready());
    let stats = rows.stats();
    assert!(stats.ignored > 0 && stats.resident_bytes <= stats.budget_bytes + slack(&stats), "{stats:?}");
    let second = rows.announce(&[1, 2, 3]);
    wait_until("the announcement is ready", || second.is_ready());
    assert_eq!(rows.stats().ignored, stats.ignored + 3, "there is no room beside the first");
    for index in 0..count {
        rows.set(index, &row(index, 1, 172)).unwrap();
    }
    rows.gather(&[1], &mut out[..172]).unwrap();
    assert_eq!(out[..172], row(1, 1, 172), "an announced row can be set");
    let dropped: Vec<_> = (0..100).map(|_| rows.announce(&everything)).collect();
    drop((held, second, dropped));
    let third = rows.announce(&[1, 2, 3]);
    wait_until("there is room again", || third.is_ready());
}

#[test]
fn what_fits_in_memory_never_touches_the_disk_and_the_budget_is_kept_to() {
    for dimension in [1, 16, 172, 1500] {
        let file = Faulty::new(works);
        let rows = rows_on(&file, dimension, 3 << 20);
        let fits = (3 << 20) / 6 / (4 * dimension as u64);
        for index in 0..fits {
            rows.set(index, &row(index, 0, dimension)).unwrap();
        }
        let stats = rows.stats();
        assert_eq!((file.operations(), stats.disk_bytes, stats.misses), ((0, 0), 0, 0), "{stats:?}");
        assert!(stats.resident_bytes < stats.budget_bytes / 3, "memory follows the rows: {stats:?}");
        for index in fits..fits * 30 {
            rows.set(index, &row(index, 0, dimension)).unwrap();
            if index % 1000 == 0 {
                let stats = rows.stats();
                assert!(stats.resident_bytes <= stats.budget_bytes + slack(&stats), "{stats:?}");
            }
        }
        let stats = rows.stats();
        assert!(stats.disk_bytes > 2 * stats.budget_bytes, "{stats:?}");
        assert!(stats.written_bytes / stats.writes >= BATCH as u64 / 2, "writes are large: {stats:?}");
        assert!(stats.written_bytes < stats.disk_bytes + (1 << 20), "and each block leaves once: {stats:?}");
        assert_eq!((stats.asked_budget_bytes, stats.engine.as_str()), (3 << 20, "memory, faulty"));
    }
}

#[test]
fn bad_rows_are_refused_and_dimension_zero_stores_nothing() {
    let file = Faulty::new(works);
    let rows = rows_on(&file, 2, 0);
    let wrong = rows.set(3, &[6.0]);
    assert!(matches!(wrong, Err(FeatureError::Dimension { index: 3, expected: 2, found: 1 })));
    assert!(matches!(rows.set(u64::MAX, &[6.0, 7.0]), Err(FeatureError::TooFar { index: u64::MAX })));
    rows.clear(u64::MAX);
    rows.clear(17);
    rows.set(1 << 40, &[6.0, 7.0]).unwrap();
    let mut out = [1.0; 6];
    rows.gather(&[u64::MAX, 1 << 40, 17], &mut out).unwrap();
    assert_eq!(out, [0.0, 0.0, 6.0, 7.0, 0.0, 0.0]);
    assert!(rows.stats().budget_bytes > 0 && rows.stats().asked_budget_bytes == 0);
    let nothing = rows_on(&file, 0, 0);
    nothing.set(1 << 40, &[1.0]).unwrap();
    nothing.clear(1);
    drop(nothing.announce(&[1, 2]));
    nothing.gather(&[1, 2], &mut []).unwrap();
}

/// Every value of a row encodes the row and its version, so a half-written or misplaced one is detected.
#[test]
fn readers_announcers_and_the_writer_work_side_by_side() {
    const DIMENSION: usize = 172;
    let value = |index: u64, version: u64| (index * 64 + version) as f32;
    let file = Faulty::new(|operation: Operation| match operation.number % 3 {
        0 => Fault::Slow(Duration::from_micros(50)),
        _ => Fault::Works,
    });
    let rows = rows_on(&file, DIMENSION, 0);
    let count = 3 * rows.stats().budget_bytes / 688;
    let (end, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = scopeguard::guard((), |()| stop.store(true, Ordering::Relaxed));
        for reader in 0..4 {
            let (rows, end, stop) = (&rows, &end, &stop);
            scope.spawn(move || {
                let mut out = vec![0.0; 100 * DIMENSION];
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let known = end.load(Ordering::Acquire);
                    let draw = |i| random_u64([reader, round, i, 3]) % (known + 10);
                    let indices: Vec<u64> = (0..100).map(draw).collect();
                    let held = (reader == 0).then(|| rows.announce(&indices));
                    rows.gather(&indices, &mut out).unwrap();
                    drop(held);
                    for (&index, row) in indices.iter().zip(out.chunks(DIMENSION)) {
                        assert!(row.iter().all(|found| *found == row[0]), "half a row: {row:?}");
                        let is_one = (0..64).any(|version| row[0] == value(index, version));
                        let may_be_unset = index >= known && row[0] == 0.0;
                        assert!(is_one || may_be_unset, "row {index} of {known} is {}", row[0]);
                    }
                }
            });
        }
        for index in 0..count {
            rows.set(index, &[value(index, 1); DIMENSION]).unwrap();
            end.store(index + 1, Ordering::Release);
            if index % 7 == 0 {
                let other = random_u64([index, 1, 1, 1]) % (index + 1);
                rows.set(other, &[value(other, 2 + index % 60); DIMENSION]).unwrap();
            }
        }
    });
    nothing_is_left_behind(&rows);
    assert!(rows.stats().reads > 0 && rows.stats().state == RowState::Ok, "{:?}", rows.stats());
}

#[test]
fn released_rows_are_not_written_though_the_disk_never_had_them() {
    let refuses = Arc::new(AtomicBool::new(true));
    let plan = Arc::clone(&refuses);
    let file = Faulty::new(move |operation| match operation.writes && plan.load(Ordering::Acquire) {
        true => Fault::Fails(ErrorKind::StorageFull),
        false => Fault::Works,
    });
    let rows = rows_on(&file, 64, 0);
    let blocks = 3_000;
    let per_block = rows.shared.shape.units_per_block * rows.shared.shape.rows_per_unit;
    (0..blocks * per_block).for_each(|index| rows.set(index, &row(index, 0, 64)).unwrap());
    let (end, before) = (2_500, rows.shared.cache.read().dirty);
    rows.release_below(end * per_block + 1);
    refuses.store(false, Ordering::Release);
    wait_until("what is kept is written", || rows.shared.cache.read().sums.written() == blocks - end);
    let stats = rows.stats();
    assert!(before as u64 >= blocks, "{before} units waited");
    assert_eq!(stats.written_bytes, stats.disk_bytes, "each block that is kept, once");
    nothing_is_left_behind(&rows);
    wait_until("nothing of the others waits", || {
        let cache = rows.shared.cache.read();
        let mut slots = cache.segments.iter().flat_map(|segment| &segment.slots);
        slots.all(|slot| !slot.dirty || rows.shared.shape.block_of(slot.unit) >= end)
    });
    let kept: Vec<u64> = (end * per_block..blocks * per_block).step_by(97).collect();
    let mut out = vec![0.0; kept.len() * 64];
    rows.gather(&kept, &mut out).unwrap();
    assert!(kept.iter().zip(out.chunks(64)).all(|(&index, found)| found == row(index, 0, 64)));
}
