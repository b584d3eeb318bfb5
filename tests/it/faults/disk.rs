//! Disks that fail, are slow, may not be written, or give back something else than was written.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Faults, holds_exactly, must_push, push};
use crate::daemon::SmallDisk;
use crate::process::{PATIENCE, Process, Start};

/// Numbers of the system: the device fails, the file system may only be read.
const EIO: i64 = 5;
const EROFS: i64 = 30;

/// Waits until the check of the log has this state; the daemon is ready all the while.
fn wait_for_log(process: &Process, state: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, ready) = process.get("/readyz").unwrap();
        assert_eq!(status, 200, "a log that cannot be written takes no reads away: {ready}");
        if ready["checks"]["log"]["state"] == state {
            return ready;
        }
        assert!(Instant::now() < deadline, "not {state}: {ready}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_disk_that_fails_or_may_only_be_read_refuses_by_name_and_is_used_again() {
    let (data, faults) = (tempfile::tempdir().unwrap(), Faults::of("/log/"));
    let process = faults.around(Start::in_dir(data.path())).ready();
    must_push(&process, 0..100);
    let mut written = 100;
    for (errno, words) in [(EROFS, "Read-only file system"), (EIO, "Input/output error")] {
        faults.set_error(errno);
        for _ in 0..3 {
            let (status, said) = push(&process, written..written + 100).unwrap();
            assert_eq!((status, &said["error_type"]), (503, &"log_failed".into()), "{said}");
            assert!(said["error"].as_str().unwrap().contains(words), "{said}");
        }
        let ready = wait_for_log(&process, "degraded");
        assert!(ready["checks"]["log"]["detail"].as_str().unwrap().contains(words), "{ready}");
        assert_eq!(process.get("/livez").unwrap().0, 200, "restarting would not help");
        assert_eq!(process.get("/v1/nodes/u1").unwrap().0, 200, "reading goes on");
        faults.set_error(0);
        wait_for_log(&process, "ok");
        must_push(&process, written..written + 100);
        written += 100;
        assert_eq!(process.status()["log"]["durable_position"], written);
    }
    holds_exactly(process, data.path(), written);
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_named_and_written_later() {
    let (data, faults) = (tempfile::tempdir().unwrap(), Faults::of("/checkpoints/"));
    let mut process = faults.around(Start::in_dir(data.path()).set("checkpoint.interval_seconds=1")).ready();
    faults.set_error(EIO);
    must_push(&process, 0..200);
    process.wait_for_line("Input/output error").expect("it is said");
    assert_eq!(process.get("/readyz").unwrap().0, 200, "questions are answered all the same");
    faults.set_error(0);
    must_push(&process, 200..300);
    let deadline = Instant::now() + PATIENCE;
    let is_whole = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().path().extension().is_some_and(|ending| ending == "checkpoint")
    };
    while !std::fs::read_dir(data.path().join("checkpoints")).unwrap().any(is_whole) {
        assert!(Instant::now() < deadline, "no checkpoint is written after the disk works again");
        std::thread::sleep(Duration::from_millis(20));
    }
    holds_exactly(process, data.path(), 300);
}

#[test]
fn a_daemon_does_not_start_on_a_disk_that_may_only_be_read_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(data.path(), "64m") else {
        return crate::skip::skipped("a disk that may only be read cannot be made here: mounting needs root");
    };
    let start = Start::in_dir(data.path());
    let process = start.ready();
    must_push(&process, 0..100);
    assert!(process.terminate().success());
    disk.remount("ro");
    let said = start.fails();
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(said.contains(data.path().to_str().unwrap()), "{said}");
    disk.remount("rw");
    holds_exactly(start.ready(), data.path(), 100);
}

#[test]
fn a_slow_disk_makes_pushes_slow_and_nothing_else() {
    const SYNC: Duration = Duration::from_millis(400);
    let (data, faults) = (tempfile::tempdir().unwrap(), Faults::of("/log/"));
    let process = faults.around(Start::in_dir(data.path())).ready();
    must_push(&process, 0..100);
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 100);
    faults.set_sync_ms(SYNC.as_millis() as i64);
    let mut questions: Vec<Duration> = Vec::new();
    std::thread::scope(|scope| {
        let pushing = scope.spawn(|| {
            (1..8).for_each(|part| {
                let started = Instant::now();
                must_push(&process, part * 100..part * 100 + 100);
                assert!(
                    started.elapsed() >= SYNC,
                    "an answer before the sync is over: {:?}",
                    started.elapsed()
                );
            });
        });
        while !pushing.is_finished() {
            let started = Instant::now();
            let answer = process.post("/v1/embeddings", "application/json", r#"{"nodes":["u1"]}"#).unwrap();
            assert_eq!(answer.0, 200, "{}", answer.1);
            questions.push(started.elapsed());
        }
        pushing.join().unwrap();
    });
    questions.sort_unstable();
    let median = questions[questions.len() / 2];
    eprintln!(
        "{} questions beside a slow disk: p50 {median:?}, longest {:?}",
        questions.len(),
        questions.last()
    );
    assert!(median < SYNC / 2, "questions wait for the disk: {median:?}");
    assert_eq!(process.get("/readyz").unwrap().0, 200);
    faults.set_sync_ms(0);
    holds_exactly(process, data.path(), 800);
}

/// A data directory with a log of several commits.
fn stopped(data: &Path) -> Start {
    let start = Start::in_dir(data);
    let process = start.ready();
    (0..5).for_each(|part| must_push(&process, part * 100..part * 100 + 100));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 500);
    assert!(process.terminate().success());
    start
}

fn change(path: &PathBuf, how: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let whole = std::fs::read(path).unwrap();
    let mut changed = whole.clone();
    how(&mut changed);
    std::fs::write(path, changed).unwrap();
    whole
}

#[test]
fn a_damaged_segment_is_refused_by_file_and_byte_and_goes_on_when_it_is_put_back() {
    let data = tempfile::tempdir().unwrap();
    let start = stopped(data.path());
    let segment = data.path().join("log/00000000000000000000.log");
    let whole = change(&segment, |bytes| bytes[200] ^= 1);
    let said = start.fails();
    assert!(said.contains(segment.to_str().unwrap()) && said.contains("checksum"), "{said}");
    let spoiled = std::fs::read(&segment).unwrap();
    assert_eq!(spoiled.len(), whole.len(), "what is damaged is left as it is");
    std::fs::write(&segment, whole).unwrap();
    holds_exactly(start.ready(), data.path(), 500);
}

#[test]
fn a_damaged_catalog_is_refused_by_name_and_costs_nothing_when_it_is_moved_away() {
    let data = tempfile::tempdir().unwrap();
    let start = stopped(data.path());
    let catalog = data.path().join("catalog.sqlite");
    change(&catalog, |bytes| bytes[..100].fill(b'x'));
    let said = start.fails();
    assert!(said.contains(catalog.to_str().unwrap()) && said.contains("move it away"), "{said}");
    for name in ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm"] {
        let _ = std::fs::rename(data.path().join(name), data.path().join(format!("{name}.away")));
    }
    let mut process = start.spawn();
    process.wait_for_line("an unrecorded checkpoint was found").expect("the checkpoint is found again");
    process.wait_until_ready();
    assert_eq!(process.status()["learner"]["applied_position"], 500);
    holds_exactly(process, data.path(), 500);
}

#[test]
fn damage_in_the_last_commit_is_refused_and_a_torn_write_is_cut_off_and_kept() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path());
    let process = start.ready();
    must_push(&process, 0..100);
    assert!(process.terminate().success());
    let segment = data.path().join("log/00000000000000000000.log");
    let whole = std::fs::read(&segment).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&segment, &damaged).unwrap();
    let said = start.fails();
    assert!(said.contains("is damaged") && said.contains(segment.to_str().unwrap()), "{said}");
    assert_eq!(std::fs::read(&segment).unwrap(), damaged, "nothing is cut off");

    // What a crash leaves of a write stands behind everything that was acknowledged.
    std::fs::write(&segment, [&whole[..], &whole[..40]].concat()).unwrap();
    let mut process = start.spawn();
    let line = process.wait_for_line("in the middle of a write").expect("what was cut off is told");
    assert!(line.contains(".torn") && !line.contains("nothing acknowledged is lost"), "{line}");
    process.wait_until_ready();
    let (_, metrics) = process.get("/metrics").unwrap();
    assert!(metrics.as_str().unwrap().contains("\nevergraph_log_torn_bytes 40\n"), "{metrics}");
    holds_exactly(process, data.path(), 100);
}
