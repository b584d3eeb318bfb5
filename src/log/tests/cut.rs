//! The log without its beginning.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use super::faulty::Operation;
use super::*;

/// A log of ten frames of two records, two frames a segment.
fn ten_frames(disk: &MemoryDisk) -> Log {
    write_all(disk, 150, &(0..10).map(|i| plain(2 * i, 2)).collect::<Vec<_>>());
    assert_eq!(segments(disk).len(), 5);
    open(disk, 150).unwrap().0
}

#[test]
fn whole_segments_below_a_position_go_and_the_record_before_it_stays() {
    for position in 0..22 {
        let disk = MemoryDisk::new();
        let mut log = ten_frames(&disk);
        let (readers, bytes) = (log.readers(), log.bytes());
        let histories: Vec<u64> = (0..=20).map(|at| readers.history(EdgeId(at)).unwrap()).collect();
        let mut follower = log.reader(EdgeId(16));
        assert_same(&[follower.next_frame().unwrap().unwrap()], &[plain(16, 2)]);
        let cuts = std::iter::repeat_with(|| log.cut(EdgeId(position)).unwrap());
        let freed: u64 = cuts.take_while(|&bytes| bytes > 0).sum();
        let gone = (position.saturating_sub(1) / 4).min(4) as usize;
        assert_eq!((segments(&disk).len(), log.bytes()), (5 - gone, bytes - freed), "{position}");
        let first = EdgeId(4 * gone as u64);
        assert_eq!(readers.first(), first);
        for at in position.max(first.0 + 1)..=20 {
            assert_eq!(readers.history(EdgeId(at)).unwrap(), histories[at as usize], "{position}, {at}");
        }
        let left: Vec<Frame> = (2 * gone as u64..10).map(|i| plain(2 * i, 2)).collect();
        assert_same(&drain(&mut log.reader(first)).unwrap(), &left);
        let before = log.reader(EdgeId(0)).next_frame();
        assert_eq!(before.is_err(), gone > 0, "what is gone is not passed over: {before:?}");
        log.append(&plain(20, 2)).unwrap();
        log.commit().unwrap();
        assert_same(&drain(&mut follower).unwrap(), &[plain(18, 2), plain(20, 2)]);
        drop(log);
        let (log, recovery) = open(&disk, 150).unwrap();
        assert_eq!((recovery.end, log.readers().first(), recovery.truncated_bytes), (EdgeId(22), first, 0));
    }
}

#[test]
fn a_segment_is_as_old_as_its_last_write() {
    let folder = tempfile::tempdir().unwrap();
    let options = LogOptions { dir: folder.path().to_path_buf(), segment_bytes: 150 };
    let (mut log, _) = Log::open(options).unwrap();
    for i in 0..10 {
        log.append(&plain(2 * i, 2)).unwrap();
        log.commit().unwrap();
    }
    let paths = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "log")).collect();
    segments.sort();
    assert_eq!(segments.len(), 5);
    let now = SystemTime::now();
    let ago = |seconds| now - Duration::from_secs(seconds);
    for (path, seconds) in segments.iter().zip([50, 40, 30, 20, 10]) {
        std::fs::File::options().write(true).open(path).unwrap().set_modified(ago(seconds)).unwrap();
    }
    let since = |seconds| log.readers().written_since(ago(seconds)).0;
    assert_eq!([100, 50, 35, 10, 5].map(since), [0, 0, 8, 16, 20]);
    std::fs::remove_file(&segments[1]).unwrap();
    assert_eq!(since(5), 4, "what cannot be read is not given up");
}

#[test]
fn a_crash_or_a_failure_halfway_leaves_no_gap() {
    let disk = MemoryDisk::new();
    let mut log = ten_frames(&disk);
    disk.fail(Operation::Remove, 1, ErrorKind::Other);
    let failed = log.cut(EdgeId(20)).unwrap_err().to_string();
    assert!(failed.contains("00000000000000000000.log"), "{failed}");
    assert_eq!((segments(&disk).len(), log.readers().first()), (5, EdgeId(0)), "as before");
    disk.fail(Operation::SyncDirectory, 1, ErrorKind::Other);
    assert!(log.cut(EdgeId(20)).is_err());
    assert_eq!(log.readers().first(), EdgeId(4), "readers do not see what may be gone");
    drop(log);
    let (mut log, _) = open(&disk, 150).unwrap();
    while log.cut(EdgeId(20)).unwrap() > 0 {}
    assert_eq!(log.readers().first(), EdgeId(16));
    assert_same(&drain(&mut log.reader(EdgeId(16))).unwrap(), &[plain(16, 2), plain(18, 2)]);
}
