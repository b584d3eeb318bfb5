//! Snapshots that are written while the loop goes on: an index that is loaded from one and reads the log behind it is
//! the one that runs.

use super::*;
use crate::appender::snapshot::{self, SnapshotError};
use crate::device::disk::WriteRate;
use crate::device::rng;
use crate::event::{ClockRules, PositionLookup};

/// Batch `number` of a stream with everything in it.
fn mixed(number: u64) -> EventBatch {
    let events = (number * 40..number * 40 + 40).map(|i| {
        let draw = |slot: u64, below: u32| rng::below([11, i, slot, 0], below);
        let name = |slot| match draw(slot, 60) {
            few @ 0..30 => NodeKey::Int(i64::from(few) - 5),
            many => NodeKey::Text(format!("node-{many}-{}", i / 4_000).into()),
        };
        let (src, dst) = (name(0), name(1));
        let time = EventTime(i as i64 - if draw(2, 9) == 0 { i64::from(draw(3, 500)) } else { 0 });
        let features = if draw(4, 3) == 0 { vec![i as f32 + 0.5] } else { Vec::new() };
        let event = match draw(5, 60) {
            0 => Event::DeleteNode { key: src },
            1..4 => Event::DeleteEdge { src, dst, until: Some(time) },
            4..9 => Event::Node { key: src, time, features: vec![i as f32 - 0.5] },
            _ => {
                let edge_type = (draw(6, 4) == 0).then(|| format!("type-{}", draw(7, 5)).into());
                Event::Edge(EdgeEvent { src, dst, time, edge_type, features, label: None })
            }
        };
        Incoming { idempotency: (draw(8, 3) == 0).then_some(u128::from(i / 2) + 1), ..Incoming::new(event) }
    });
    let (partition, from) = ((number % 3) as i32, (number / 3 * 40) as i64);
    let range = SourceRange { source: "kafka:t".into(), partition, from, to: from + 40, mark: None };
    let offsets = (from..from + 40).collect();
    EventBatch { events: events.collect(), offsets, ranges: vec![range], ..EventBatch::default() }
}

/// All that can be asked of an index.
fn content(index: &Index) -> impl PartialEq + std::fmt::Debug + use<> {
    let stores = &index.stores;
    let nodes: Vec<_> = (0..stores.keys.len()).map(|id| stores.keys.key(NodeId(id as u32))).collect();
    let ids: Vec<_> = nodes.iter().flatten().map(|key| stores.keys.lookup(key)).collect();
    let rows = |rows: &FeatureStore, count: u64| {
        let mut found = vec![0.0; count as usize];
        rows.gather(&(0..count).collect::<Vec<_>>(), &mut found).unwrap();
        found
    };
    let types: Vec<_> = (0..5).map(|i| index.stores.types.lookup(&format!("type-{i}"))).collect();
    let clocks: Vec<_> = (0..3).map(|partition| index.positions.clock("kafka:t", partition)).collect();
    let rows = (rows(&stores.edge_features, index.end().0), rows(&stores.node_features, nodes.len() as u64));
    let (digest, summary) = (stores.graph.digest(&stores.keys).unwrap(), stores.graph.summary());
    let seen: Vec<u128> = index.seen.keys().collect();
    ((nodes, ids, types), (index.positions.all(), clocks, seen), rows, (digest, summary, index.end()))
}

#[test]
fn an_index_from_a_snapshot_and_the_log_behind_it_is_the_one_that_runs() {
    let (disk, folder) = (MemoryDisk::new(), tempfile::tempdir().unwrap());
    let mut appender = appender(&disk);
    submit(&mut appender, (0..200).map(mixed));
    let capture = appender.index.capture();
    let (position, history) =
        (capture.position(), appender.log.readers().history(capture.position()).unwrap());
    let (stores, meanwhile) = (appender.index.stores.clone(), appender.index.deleted_meanwhile.clone());
    let (rate, stop) = (WriteRate::default(), AtomicBool::new(false));
    let written = std::thread::scope(|scope| {
        let write = || {
            let pace = snapshot::Pace { rate: &rate, stop: &stop };
            snapshot::write(folder.path(), (&capture, history), &stores, &meanwhile, pace, &|| Ok(()))
        };
        let writing = scope.spawn(write);
        let mut number = 200;
        while number < 400 || !writing.is_finished() {
            submit(&mut appender, [mixed(number)]);
            number += 1;
        }
        writing.join().unwrap().unwrap()
    });
    assert_eq!(written.position, position);
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [std::ffi::OsString::from(snapshot::name(position))]);

    let head = snapshot::open(&folder.path().join(snapshot::name(position)), ClockRules::default()).unwrap();
    assert_eq!((head.capture.position(), head.history), (position, history));
    head.verify().unwrap();
    let mut loaded = empty_index();
    assert!(head.fits(&loaded.stores));
    head.load(&mut loaded).unwrap();
    assert_eq!(loaded.end(), position);
    read(&appender.log, &mut loaded);
    assert_eq!(content(&loaded), content(&appender.index));
    let mut replayed = empty_index();
    read(&appender.log, &mut replayed);
    assert_eq!(content(&replayed), content(&appender.index), "as without a snapshot");
}

#[test]
fn a_damaged_snapshot_is_an_error_that_names_the_file() {
    let (disk, folder) = (MemoryDisk::new(), tempfile::tempdir().unwrap());
    let mut appender = appender(&disk);
    submit(&mut appender, (0..20).map(mixed));
    let capture = appender.index.capture();
    let (stores, meanwhile) = (&appender.index.stores, &appender.index.deleted_meanwhile);
    let (rate, stop) = (WriteRate::default(), AtomicBool::new(false));
    let write = || {
        let pace = snapshot::Pace { rate: &rate, stop: &stop };
        snapshot::write(folder.path(), (&capture, 7), stores, meanwhile, pace, &|| Ok(()))
    };
    write().unwrap();
    let path = folder.path().join(snapshot::name(capture.position()));
    for file in std::fs::read_dir(&path).unwrap() {
        let file = file.unwrap().path();
        let whole = std::fs::read(&file).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 16;
        std::fs::write(&file, &flipped).unwrap();
        let found = snapshot::open(&path, ClockRules::default()).and_then(|head| head.verify());
        let Err(SnapshotError::Damaged { path: named, .. }) = found else { panic!("{file:?}: {found:?}") };
        assert_eq!(named, file);
        std::fs::write(&file, &whole).unwrap();
    }
    snapshot::open(&path, ClockRules::default()).unwrap().verify().unwrap();
    write().unwrap();
    stop.store(true, Ordering::Release);
    let stopped = write();
    assert!(matches!(stopped, Err(SnapshotError::Io { .. })), "{stopped:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
    snapshot::open(&path, ClockRules::default()).unwrap().verify().unwrap();
}
