//! Replays of small files into a stand-in for the log.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::ingest::admit::{AdmitOptions, LatePolicy};
use crate::ingest::mapping::tests::each_time;
use crate::ingest::tests::fake_log::FakeLog;

const LONG: Duration = Duration::from_secs(20);

fn write_rows(path: &Path, rows: i64) {
    let mut file = std::fs::File::create(path).unwrap();
    writeln!(file, "src,dst,ts").unwrap();
    for i in 0..rows {
        // Every tenth row is bad.
        let time = if i % 10 == 9 { "soon".to_owned() } else { i.to_string() };
        writeln!(file, "{i},b,{time}").unwrap();
    }
}

fn offsets(log: &FakeLog) -> Vec<i64> {
    log.batches.lock().iter().flat_map(|b| b.offsets.clone()).collect()
}

#[test]
fn a_replay_goes_on_exactly_where_the_log_stands() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    write_rows(&path, 25);
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    let mut options = ReplayOptions::new(&path);
    options.batch_events = 4;
    log.refuse.store(2, SeqCst);
    options.retry_wait = Duration::from_millis(5);
    let replay = Replay::start(options.clone(), wiring.clone()).unwrap();
    assert!(replay.name().starts_with("file:events.csv#16-"), "{}", replay.name());
    assert!(replay.wait(LONG));
    assert_eq!(replay.state(), ReplayState::Done);
    assert_eq!(replay.next_row(), 25);
    assert_eq!(offsets(&log), (0..25).filter(|i| i % 10 != 9).collect::<Vec<_>>());
    let snapshot = replay.stats().snapshot();
    assert_eq!((snapshot.received, snapshot.stored, snapshot.dead_letters), (25, 23, 2));
    assert_eq!(snapshot.refused_batches, 2);
    let letters = std::fs::read_to_string(folder.path().join("dead.jsonl")).unwrap();
    assert_eq!(letters.lines().count(), 2);
    assert!(letters.contains("malformed_row") && letters.contains("soon"), "{letters}");

    // The file grows; the rest is read, nothing twice.
    write_rows(&path, 31);
    let replay = Replay::start(options.clone(), wiring.clone()).unwrap();
    assert!(replay.wait(LONG));
    assert_eq!(offsets(&log), (0..31).filter(|i| i % 10 != 9).collect::<Vec<_>>());
    assert_eq!(replay.stats().snapshot().received, 6);

    // A file that has lost rows which the log has read is reported.
    write_rows(&path, 20);
    let replay = Replay::start(options, wiring).unwrap();
    assert!(replay.wait(LONG));
    let state = replay.state();
    assert!(matches!(&state, ReplayState::Failed { reason } if reason.contains("row 31")), "{state:?}");
}

#[test]
fn a_paced_replay_keeps_its_pace_and_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    write_rows(&path, 100_000);
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    let mut options = ReplayOptions::new(&path);
    options.events_per_second = Some(2_000.0);
    let started = Instant::now();
    let replay = Replay::start(options.clone(), wiring.clone()).unwrap();
    while replay.next_row() <= 500 {
        assert!(started.elapsed() < LONG, "{} rows so far", replay.next_row());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(replay.stop(LONG));
    #[allow(clippy::cast_precision_loss)]
    let due = started.elapsed().as_secs_f64() * 2_000.0;
    #[allow(clippy::cast_precision_loss)]
    let read = replay.next_row() as f64;
    assert_eq!(replay.state(), ReplayState::Stopped);
    assert!(read <= due, "{read} rows when at most {due:.0} were due");
    let after = log.count();
    options.events_per_second = None;
    let replay = Replay::start(options, wiring).unwrap();
    assert!(replay.wait(Duration::from_secs(60)));
    assert!(log.count() > after);
    assert_eq!(offsets(&log), (0..100_000).filter(|i| i % 10 != 9).collect::<Vec<_>>());
}

#[test]
fn late_rows_follow_the_policy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("late.csv");
    std::fs::write(&path, "src,dst,ts\n1,2,100\n1,2,95\n1,2,80\n1,2,101\n").unwrap();
    let rules =
        AdmitOptions { allowed_lateness: Some(10), late: LatePolicy::Drop, ..AdmitOptions::default() };
    let (log, wiring) = FakeLog::start(folder.path(), rules);
    let replay = Replay::start(ReplayOptions::new(&path), wiring.clone()).unwrap();
    assert!(replay.wait(LONG));
    assert_eq!(offsets(&log), [0, 1, 3]);
    assert_eq!(log.batches.lock()[0].ranges[0].to, 4, "the dropped row is accounted for");
    assert_eq!(replay.stats().snapshot().late_dropped, 1);
    assert_eq!(wiring.admission.latest(), Some(crate::event::EventTime(101)));
}

#[test]
fn a_disk_too_full_for_dead_letters_delays_a_replay_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    write_rows(&path, 25);
    let letters = folder.path().join("dead.jsonl");
    // Every write to it finds the disk full.
    std::os::unix::fs::symlink("/dev/full", &letters).unwrap();
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    let mut options = ReplayOptions::new(&path);
    options.batch_events = 10;
    options.retry_wait = Duration::from_millis(5);
    let replay = Replay::start(options, wiring).unwrap();
    let deadline = Instant::now() + LONG;
    while !matches!(replay.state(), ReplayState::Degraded { reason } if reason.contains("free space")) {
        assert!(Instant::now() < deadline, "{:?}", replay.state());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(log.count(), 0, "no batch goes before its dead letters");
    std::fs::remove_file(&letters).unwrap();
    assert!(replay.wait(LONG));
    assert_eq!(replay.state(), ReplayState::Done);
    assert_eq!(offsets(&log), (0..25).filter(|i| i % 10 != 9).collect::<Vec<_>>());
    assert_eq!(std::fs::read_to_string(&letters).unwrap().lines().count(), 2);
    assert_eq!(replay.stats().snapshot().dead_letters, 2);
}

#[test]
fn another_file_of_the_same_name_is_read_from_its_start() {
    let folder = tempfile::tempdir().unwrap();
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    let file = |day: &str, rows: i64| {
        std::fs::create_dir_all(folder.path().join(day)).unwrap();
        let path = folder.path().join(day).join("events.csv");
        let text: String = (0..rows).map(|i| format!("{day},b,{i}\n")).collect();
        std::fs::write(&path, format!("src,dst,ts\n{text}")).unwrap();
        path
    };
    let read = |path: &Path| {
        let before = log.count();
        let replay = Replay::start(ReplayOptions::new(path), wiring.clone()).unwrap();
        assert!(replay.wait(LONG));
        assert_eq!(replay.state(), ReplayState::Done);
        log.count() - before
    };
    assert_eq!(read(&file("day1", 30)), 30);
    assert_eq!(read(&file("day2", 25)), 25);
    assert_eq!(read(&file("day1", 40)), 10, "it was added to");
    assert_eq!(read(&file("day1", 40)), 0);
    assert_eq!(read(&file("day2", 100)), 75);
}

#[test]
fn events_of_a_file_are_as_old_as_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    write_rows(&path, 5);
    let written = UNIX_EPOCH + Duration::from_millis(1_600_000_000_123);
    std::fs::File::options().append(true).open(&path).unwrap().set_modified(written).unwrap();
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    let replay = Replay::start(ReplayOptions::new(&path), wiring).unwrap();
    assert!(replay.wait(LONG));
    assert_eq!(log.batches.lock()[0].origin_unix_ms, 1_600_000_000_123);
}

#[test]
fn rows_that_the_log_can_never_store_are_dead_letters_and_end_no_replay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.csv");
    let times = [0, 1, 2, 77, 4, 77, 6, 7, 8, 9, 10, 77];
    let rows: String =
        times.iter().enumerate().map(|(row, time)| format!("n{row},\"b,c\",{time}\n")).collect();
    std::fs::write(&path, format!("src,dst,ts\n{rows}")).unwrap();
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    *log.unstorable_time.lock() = Some(77);
    // A longer batch is too large as a whole.
    log.events_max.store(2, SeqCst);
    let mut options = ReplayOptions::new(&path);
    options.batch_events = 7;
    let replay = Replay::start(options.clone(), wiring.clone()).unwrap();
    assert!(replay.wait(LONG));
    assert_eq!((replay.state(), replay.next_row()), (ReplayState::Done, 12));
    assert_eq!(offsets(&log), [0, 1, 2, 4, 6, 7, 8, 9, 10]);
    let ends: Vec<i64> = log.batches.lock().iter().map(|batch| batch.ranges[0].to).collect();
    assert!(ends.is_sorted() && ends.contains(&7) && ends.last() == Some(&12), "{ends:?}");
    let letters = std::fs::read_to_string(folder.path().join("dead.jsonl")).unwrap();
    let letters: Vec<&str> = letters.lines().collect();
    assert_eq!(letters.len(), 3);
    for (letter, row) in letters.iter().zip([3, 5, 11]) {
        assert!(letter.contains("unstorable") && letter.contains(&format!("n{row},b,c,77")), "{letter}");
    }
    let snapshot = replay.stats().snapshot();
    assert_eq!((snapshot.received, snapshot.stored, snapshot.dead_letters), (12, 9, 3));
    assert!(snapshot.rejected.contains(&("unstorable", 3)), "{:?}", snapshot.rejected);
    // Where one event alone is too large, it is that one.
    std::fs::write(&path, format!("src,dst,ts\n{rows}x,y,12\n")).unwrap();
    log.whole_batches.store(1, SeqCst);
    let replay = Replay::start(options, wiring).unwrap();
    assert!(replay.wait(LONG));
    assert_eq!((replay.state(), log.count(), replay.next_row()), (ReplayState::Done, 9, 13));
    assert_eq!(replay.stats().snapshot().dead_letters, 1);
}

/// Rows that are events for each time in their list.
fn mapped(path: &Path, rows: &[&[i64]]) -> ReplayOptions {
    let lines: String =
        rows.iter().enumerate().map(|(row, times)| format!("{{\"id\":{row},\"at\":{times:?}}}\n")).collect();
    std::fs::write(path, lines).unwrap();
    let mut options = ReplayOptions::new(path);
    options.mapping = Some(each_time());
    options
}

#[test]
fn a_row_of_several_events_is_stored_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    *log.unstorable_time.lock() = Some(77);
    log.events_max.store(4, SeqCst);
    // One event of a row is unstorable; a row alone is too large; another one is neither.
    let options = mapped(&path, &[&[1, 2], &[3, 77, 77, 4], &[5], &[6; 5], &[7, 8]]);
    let replay = Replay::start(options, wiring).unwrap();
    assert!(replay.wait(LONG));
    assert_eq!((replay.state(), replay.next_row()), (ReplayState::Done, 5));
    assert_eq!(offsets(&log), [0, 0, 2, 4, 4]);
    let letters = std::fs::read_to_string(folder.path().join("dead.jsonl")).unwrap();
    let letters: Vec<&str> = letters.lines().collect();
    assert_eq!(letters.len(), 2, "{letters:?}");
    for (letter, text) in letters.iter().zip(["[3, 77, 77, 4]}", "[6, 6, 6, 6, 6]}"]) {
        assert!(letter.contains("unstorable") && letter.contains(text), "{letter}");
    }
    let snapshot = replay.stats().snapshot();
    assert_eq!((snapshot.received, snapshot.stored, snapshot.dead_letters), (14, 5, 2));
}

#[test]
fn events_are_paced_however_many_a_row_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let (_log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    let mut options = mapped(&path, &[[1; 50].as_slice(); 20]);
    options.events_per_second = Some(1_000.0);
    let started = Instant::now();
    let replay = Replay::start(options, wiring).unwrap();
    assert!(replay.wait(LONG));
    // The last row was due when the 950 events before it were read.
    assert!(started.elapsed() >= Duration::from_millis(950), "{:?}", started.elapsed());
    assert_eq!(replay.stats().snapshot().received, 1_000);
}

#[test]
fn rows_of_a_parquet_file_are_read_once_and_a_row_that_is_no_event_is_a_letter() {
    let folder = tempfile::tempdir().unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora/parquet/good-columns.parquet");
    let (log, wiring) = FakeLog::start(folder.path(), AdmitOptions::default());
    let options = ReplayOptions::new(&path);
    for received in [3, 0] {
        let replay = Replay::start(options.clone(), wiring.clone()).unwrap();
        assert!(replay.name().starts_with("file:good-columns.parquet#"), "{}", replay.name());
        assert!(replay.wait(LONG));
        assert_eq!((replay.next_row(), replay.stats().snapshot().received), (3, received));
    }
    // The stream has no features, and the first row has.
    assert_eq!(offsets(&log), [1]);
    let letters = std::fs::read_to_string(folder.path().join("dead.jsonl")).unwrap();
    assert!(letters.contains("row 2: src") && letters.lines().count() == 2, "{letters}");
}
