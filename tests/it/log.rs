//! The event log on real files: locks, threads, a disk that is really full.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId};
use evergraph::log::{Frame, Log, LogError, LogOptions, LogReader, read_only};

fn options(dir: &Path, segment_bytes: u64) -> LogOptions {
    LogOptions { dir: dir.to_owned(), segment_bytes }
}

/// `n` edges from position `first`, told apart by their times.
fn edges(first: EdgeId, n: u64) -> Frame {
    let mut batch = EdgeBatch { first, ..EdgeBatch::default() };
    for i in first.0..first.0 + n {
        batch.push_edge(NodeId(i as u32), NodeId(0), EventTime(i as i64 * 3));
    }
    Frame { batch, ..Frame::default() }
}

/// Reads to the durable end and checks every record; the number of frames.
fn check_to_end(reader: &mut LogReader) -> usize {
    let mut frames = 0;
    while let Some(frame) = reader.next_frame().unwrap() {
        for i in 0..frame.batch.len() {
            assert_eq!(frame.batch.time[i], EventTime(frame.batch.id(i).0 as i64 * 3));
        }
        frames += 1;
    }
    frames
}

#[test]
fn a_log_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/when/missing");
    for round in 0..5 {
        let (mut log, recovery) = Log::open(options(&path, 4_000)).unwrap();
        assert_eq!((recovery.end, recovery.truncated_bytes), (EdgeId(round * 300), 0));
        for _ in 0..3 {
            log.append(&edges(log.end(), 100)).unwrap();
            log.commit().unwrap();
        }
        assert_eq!(check_to_end(&mut log.reader(EdgeId(0))), (round as usize + 1) * 3);
    }
    assert!(std::fs::read_dir(&path).unwrap().count() > 3, "several segments and a lock file");
}

#[test]
fn two_writers_of_one_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(options(dir.path(), 4_000)).unwrap();
    let error = Log::open(options(dir.path(), 4_000)).err().unwrap();
    assert!(matches!(&error, LogError::Locked { dir: named } if named == dir.path()), "{error}");
    drop(log);
    Log::open(options(dir.path(), 4_000)).unwrap();
}

#[test]
fn readers_follow_a_writer_in_another_thread() {
    const END: EdgeId = EdgeId(30_000);
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = Log::open(options(dir.path(), 20_000)).unwrap();
    let readers: Vec<_> = [0, 1, 17_003]
        .map(|from| {
            let mut reader = log.readers().reader(EdgeId(from));
            thread::spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(60);
                while reader.position() < END {
                    assert!(Instant::now() < deadline, "stuck at {}", reader.position());
                    check_to_end(&mut reader);
                    assert!(reader.position() <= reader.durable_end().max(EdgeId(from)));
                    thread::yield_now();
                }
                assert_eq!(reader.position(), END);
            })
        })
        .into();
    let mut size = 1;
    while log.end() < END {
        for _ in 0..size % 4 {
            let left = END.0 - log.end().0;
            log.append(&edges(log.end(), left.min(size % 700))).unwrap();
        }
        log.commit().unwrap();
        size += 13;
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn tools_read_beside_the_writer_and_stop_at_a_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(check_to_end(&mut read_only(dir.path()).unwrap()), 0, "an empty directory is an empty log");
    let (mut log, _) = Log::open(options(dir.path(), 1_000)).unwrap();
    for _ in 0..4 {
        log.append(&edges(log.end(), 50)).unwrap();
        log.commit().unwrap();
    }
    let mut reader = read_only(dir.path()).unwrap();
    assert_eq!((check_to_end(&mut reader), reader.position()), (4, EdgeId(200)));
    let segment = dir.path().join("00000000000000000100.log");
    let whole = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &whole[..whole.len() - 5]).unwrap();
    assert!(read_only(dir.path()).is_err(), "what the mark vouches for is no torn tail");
    std::fs::remove_file(dir.path().join("DURABLE")).unwrap();
    let mut reader = read_only(dir.path()).unwrap();
    assert_eq!((check_to_end(&mut reader), reader.durable_end()), (3, EdgeId(150)));
    assert_eq!(std::fs::read(&segment).unwrap().len(), whole.len() - 5, "nothing is cut");
    assert!(read_only(&dir.path().join("missing")).is_err());
}

/// A file system of a few pages, for as long as it lives.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn mount(bytes: usize) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(dir)),
            failed => {
                crate::skip::skipped(&format!(
                    "no tmpfs can be mounted here, nothing was tested: {failed:?}"
                ));
                None
            }
        }
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.path().display());
        }
    }
}

#[test]
fn a_disk_that_is_really_full_keeps_nothing_and_the_retry_succeeds() {
    let Some(disk) = TinyDisk::mount(64 << 10) else { return };
    let path = disk.0.path().join("log");
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 32 << 10]).unwrap();
    let (mut log, _) = Log::open(options(&path, 10_000)).unwrap();
    let mut frames = 0;
    let error = loop {
        log.append(&edges(log.end(), 97)).unwrap();
        match log.commit() {
            Ok(_) => frames += 1,
            Err(error) => break error,
        }
        assert!(frames < 100, "the disk is never full");
    };
    assert!(error.is_disk_full(), "{error}");
    let end = EdgeId(frames * 97);
    assert_eq!((log.end(), log.durable_end()), (end, end));
    assert_eq!(check_to_end(&mut log.reader(EdgeId(0))) as u64, frames);
    log.append(&edges(end, 97)).unwrap();
    assert!(log.commit().unwrap_err().is_disk_full(), "still full");
    std::fs::remove_file(&ballast).unwrap();
    for _ in 0..4 {
        log.append(&edges(log.end(), 97)).unwrap();
        log.commit().unwrap();
    }
    drop(log);
    let (log, recovery) = Log::open(options(&path, 10_000)).unwrap();
    assert_eq!((recovery.end, recovery.truncated_bytes), (EdgeId((frames + 4) * 97), 0));
    assert_eq!(check_to_end(&mut log.reader(EdgeId(0))) as u64, frames + 4);

    // The same events on a disk with room make the same files.
    let roomy = tempfile::tempdir().unwrap();
    let (mut unbroken, _) = Log::open(options(roomy.path(), 10_000)).unwrap();
    while unbroken.end() < recovery.end {
        unbroken.append(&edges(unbroken.end(), 97)).unwrap();
        unbroken.commit().unwrap();
    }
    for entry in std::fs::read_dir(roomy.path()).unwrap() {
        let name = entry.unwrap().file_name();
        let bytes = |dir: &Path| std::fs::read(dir.join(&name)).unwrap();
        assert_eq!(bytes(&path), bytes(roomy.path()), "{}", name.display());
    }
}
