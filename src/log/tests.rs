//! What every test of the log uses, and the log on a disk that works.

mod crash;
mod cut;
mod damage;
pub mod faulty;
mod round_trip;

use std::path::PathBuf;
use std::sync::Arc;

use super::{Access, Frame, Log, LogError, LogFile, LogOptions, LogReader, LogStorage, Recovery};
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId, NodeKey, Op, SourceRange};
use faulty::MemoryDisk;

const DIR: &str = "data/log";

fn options(segment_bytes: u64) -> LogOptions {
    LogOptions { dir: PathBuf::from(DIR), segment_bytes }
}

fn open(disk: &MemoryDisk, segment_bytes: u64) -> Result<(Log, Recovery), LogError> {
    Log::open_with(options(segment_bytes), disk.storage())
}

/// `n` plain edges from position `first`.
fn plain(first: u64, n: usize) -> Frame {
    let mut batch = EdgeBatch { first: EdgeId(first), ..EdgeBatch::default() };
    for i in first..first + n as u64 {
        batch.push_edge(NodeId(i as u32), NodeId(7), EventTime(1_000 + i as i64));
    }
    Frame { batch, origin_unix_ms: first as i64, ..Frame::default() }
}

/// `n` records with something in every column.
fn rich(first: u64, n: usize) -> Frame {
    let mut frame = plain(first, n);
    let batch = &mut frame.batch;
    for i in 0..n {
        batch.features.push(i, &[i as f32, -0.5][..i % 3]);
        batch.edge_type[i] = (i % 2) as u16;
        batch.label[i] = 0.25;
        batch.op[i] = Op::from_code((i % 4) as u8).unwrap();
        batch.idempotency.push(u128::from(first) << 64 | i as u128);
    }
    frame.new_keys = vec![NodeKey::Int(-(first as i64)), NodeKey::from_text("käse")];
    frame.new_types = vec!["pays".into()];
    frame.sources = vec![positions(first as i64)];
    frame
}

/// A frame without records that only moves a source on.
fn only_positions(first: u64) -> Frame {
    Frame { sources: vec![positions(100 + first as i64)], ..plain(first, 0) }
}

fn positions(from: i64) -> SourceRange {
    SourceRange { source: Arc::from("kafka:payments"), partition: 3, from, to: from + 5, mark: None }
}

/// Frames that follow one another, of several kinds and sizes.
fn story() -> Vec<Frame> {
    vec![plain(0, 3), rich(3, 4), only_positions(7), plain(7, 1), rich(8, 2), plain(10, 5)]
}

/// Names of the segments, in order.
fn segments(disk: &MemoryDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.ends_with(".log")).collect()
}

/// Writes the frames, a commit each.
fn write_all(disk: &MemoryDisk, segment_bytes: u64, frames: &[Frame]) {
    let (mut log, _) = open(disk, segment_bytes).unwrap();
    for frame in frames {
        log.append(frame).unwrap();
        log.commit().unwrap();
    }
}

fn drain(reader: &mut LogReader) -> Result<Vec<Frame>, LogError> {
    std::iter::from_fn(|| reader.next_frame().transpose()).collect()
}

fn read_all(disk: &MemoryDisk) -> Result<Vec<Frame>, LogError> {
    drain(&mut open(disk, 1 << 20)?.0.reader(EdgeId(0)))
}

/// Equality that takes every NaN for itself.
#[track_caller]
fn assert_same(found: &[Frame], expected: &[Frame]) {
    assert_eq!(format!("{found:?}"), format!("{expected:?}"));
}

#[test]
fn what_is_committed_is_read_again() {
    for segment_bytes in [1, 200, 1 << 20] {
        let disk = MemoryDisk::new();
        write_all(&disk, segment_bytes, &story());
        assert_same(&read_all(&disk).unwrap(), &story());
        let (log, recovery) = open(&disk, segment_bytes).unwrap();
        assert_eq!((log.end(), log.durable_end(), recovery.end), (EdgeId(15), EdgeId(15), EdgeId(15)));
        assert_eq!((recovery.truncated_bytes, recovery.truncated_at), (0, None));
        let on_disk: usize = segments(&disk).iter().map(|name| disk.content(name).len()).sum();
        assert_eq!((log.bytes(), recovery.bytes), (on_disk as u64, on_disk as u64));
    }
}

#[test]
fn a_segment_is_named_by_its_first_position_and_rolled_at_its_size() {
    let disk = MemoryDisk::new();
    write_all(&disk, 1, &[plain(0, 2), only_positions(2), plain(2, 1), only_positions(3), plain(3, 1)]);
    // A frame without records cannot begin a segment of its own name twice.
    let names = ["00000000000000000000.log", "00000000000000000002.log", "00000000000000000003.log"];
    assert_eq!(segments(&disk), names);
    let disk = MemoryDisk::new();
    write_all(&disk, 110, &(0..6).map(|i| plain(i, 1)).collect::<Vec<_>>());
    assert_eq!(segments(&disk).len(), 3, "68-byte frames, two a segment: {:?}", segments(&disk));
}

#[test]
fn a_reader_starts_at_any_position() {
    // With 450 bytes, the frame without records is the last of its segment.
    for segment_bytes in [1, 200, 450, 1 << 20] {
        let disk = MemoryDisk::new();
        write_all(&disk, segment_bytes, &story());
        let (log, _) = open(&disk, segment_bytes).unwrap();
        for from in (0..=16).chain([9, 2, 15, 0, 7]) {
            let wanted: Vec<Frame> = story()
                .into_iter()
                .filter(|frame| {
                    let end = frame.batch.end().0;
                    end > from || (frame.batch.is_empty() && end == from)
                })
                .collect();
            assert_same(&drain(&mut log.reader(EdgeId(from))).unwrap(), &wanted);
        }
        let second = (segment_bytes == 450).then(|| disk.names()[1].clone());
        assert!(second.is_none_or(|name| name == "00000000000000000007.log"));
    }
}

#[test]
fn a_reader_of_the_last_segment_reads_its_frames_and_no_others() {
    let disk = MemoryDisk::new();
    assert_eq!(open(&disk, 1).unwrap().0.reader(EdgeId(0)).start_at_last_segment(), EdgeId(0));
    write_all(&disk, 1, &story());
    let (log, _) = open(&disk, 1).unwrap();
    let mut reader = log.reader(EdgeId(0));
    assert_eq!(reader.start_at_last_segment(), EdgeId(10));
    let read = drain(&mut reader).unwrap();
    assert_same(&read, &story()[5..]);
}

#[test]
fn a_reader_sees_what_is_durable_and_follows() {
    for segment_bytes in [1, 200, 1 << 20] {
        let (mut log, _) = open(&MemoryDisk::new(), segment_bytes).unwrap();
        let mut reader = log.readers().reader(EdgeId(0));
        for frame in story() {
            log.append(&frame).unwrap();
            assert!(reader.next_frame().unwrap().is_none(), "appended is not durable");
            assert_eq!(log.commit().unwrap(), log.end());
            assert_eq!(reader.durable_end(), log.end());
            assert_same(&[reader.next_frame().unwrap().unwrap()], &[frame]);
            assert_eq!(reader.position(), log.end());
            assert!(reader.next_frame().unwrap().is_none());
        }
    }
}

#[test]
fn a_commit_of_many_frames_is_one_write() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, 1).unwrap();
    for frame in story() {
        log.append(&frame).unwrap();
    }
    assert_eq!((log.end(), log.durable_end()), (EdgeId(15), EdgeId(0)));
    assert_eq!(log.commit().unwrap(), EdgeId(15));
    assert_eq!(segments(&disk).len(), 1, "a commit is never split over segments");
    drop(log);
    assert_same(&read_all(&disk).unwrap(), &story());
}

#[test]
fn frames_that_do_not_fit_are_refused() {
    type Spoil = fn(&mut EdgeBatch);
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, 1 << 20).unwrap();
    log.append(&plain(0, 2)).unwrap();
    let error = log.append(&plain(3, 1)).unwrap_err();
    assert!(matches!(error, LogError::OutOfOrder { expected: EdgeId(2), found: EdgeId(3) }), "{error}");
    let spoil: [(&str, Spoil); 7] = [
        ("src", |batch| batch.src.truncate(1)),
        ("dst", |batch| batch.dst.push(NodeId(1))),
        ("time", |batch| batch.time.clear()),
        ("edge_type", |batch| batch.edge_type.clear()),
        ("features.values", |batch| batch.features.values.push(1.0)),
        ("features.ends (ascending)", |batch| batch.features.ends[0] = 3),
        ("idempotency", |batch| batch.idempotency.truncate(2)),
    ];
    for (name, spoil) in spoil {
        let mut frame = rich(2, 3);
        spoil(&mut frame.batch);
        match log.append(&frame) {
            Err(LogError::Shape { column, .. }) => assert_eq!(column, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    log.append(&plain(2, 1)).unwrap();
    assert_eq!(log.commit().unwrap(), EdgeId(3));
    drop(log);
    assert_same(&read_all(&disk).unwrap(), &[plain(0, 2), plain(2, 1)]);
}

#[test]
fn discarded_frames_are_never_written_and_their_positions_are_free_again() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, 1 << 20).unwrap();
    log.append(&plain(0, 2)).unwrap();
    log.commit().unwrap();
    log.append(&plain(2, 5)).unwrap();
    log.discard();
    assert_eq!((log.end(), log.pending_bytes(), log.commit().unwrap()), (EdgeId(2), 0, EdgeId(2)));
    log.append(&plain(2, 1)).unwrap();
    assert_eq!(log.commit().unwrap(), EdgeId(3));
    drop(log);
    assert_same(&read_all(&disk).unwrap(), &[plain(0, 2), plain(2, 1)]);
}

#[test]
fn writer_and_readers_move_to_their_threads() {
    fn moves<T: Send + 'static>(_: &T) {}
    let (log, _) = open(&MemoryDisk::new(), 1).unwrap();
    moves(&log);
    moves(&log.readers());
    moves(&log.reader(EdgeId(0)));
}

#[test]
fn there_is_one_writer() {
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 1).unwrap();
    let error = open(&disk, 1).err().unwrap();
    assert!(matches!(&error, LogError::Locked { .. }), "{error}");
    assert!(error.to_string().contains(DIR), "{error}");
    drop(log);
    assert!(open(&disk, 1).is_ok());
}
