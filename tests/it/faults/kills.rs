//! SIGKILL at every point at which the daemon changes a file: around each kind of call on the log, on checkpoints and
//! on the catalog, in a start, at work and in a stop.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use super::{Faults, holds_exactly, push};
use crate::process::{Process, Start};

/// Events of a round, and how many are pushed at once.
const EVENTS: usize = 240;
const PUSH: usize = 40;

/// A call at which the daemon dies, by its name and number.
type Point = (&'static str, usize);

fn quiet(data: &Path) -> Start {
    Start::in_dir(data).set("checkpoint.interval_seconds=3600").set("checkpoint.keep=1")
}

/// Pushes events from the first on until the daemon is gone; how many were acknowledged.
fn push_until_gone(process: &Process) -> usize {
    let mut acknowledged = 0;
    while acknowledged < EVENTS {
        match push(process, acknowledged..acknowledged + PUSH) {
            Some((200, _)) => acknowledged += PUSH,
            Some((status, said)) => panic!("{status}: {said}"),
            None => break,
        }
    }
    acknowledged
}

/// Runs a daemon on `data` that dies at the point, wherever in its life that is; how many events it acknowledged.
fn die(data: &Path, path: &str, (call, number): Point, when: &str) -> usize {
    let faults = Faults::of(path);
    let mut process =
        faults.around(quiet(data)).env("FAULT_KILL", &format!("{call} {number} {when}")).spawn();
    let mut acknowledged = 0;
    if process.gets_ready() {
        acknowledged = push_until_gone(&process);
        if acknowledged == EVENTS {
            process.wait_until("all learned", |status| status["learner"]["applied_position"] == EVENTS);
            process.signal("-TERM");
        }
    }
    let status = process.ended();
    assert_eq!(status.signal(), Some(9), "{path} {call} {number} was not reached: {status}");
    acknowledged
}

/// After a death at each of the points what was acknowledged is there, and the rest comes in.
fn survives(path: &str, points: &[Point], prepare: impl Fn(&Path)) {
    for point in points {
        for when in ["before", "after"] {
            let data = tempfile::tempdir().unwrap();
            prepare(data.path());
            let acknowledged = die(data.path(), path, *point, when);
            let process = quiet(data.path()).ready();
            let stands_at = process.status()["log"]["durable_position"].as_u64().unwrap() as usize;
            eprintln!(
                "{when} {} number {}: {acknowledged} acknowledged, {stands_at} there",
                point.0, point.1
            );
            assert!(
                stands_at >= acknowledged,
                "{when} {point:?}: {acknowledged} acknowledged, {stands_at} there"
            );
            holds_exactly(process, data.path(), EVENTS);
        }
    }
}

#[test]
fn a_death_around_every_change_of_the_log_loses_nothing() {
    let points = [
        ("open64", 1),
        ("open64", 2),
        ("fsync", 1),
        ("pwrite64", 1),
        ("pwrite64", 3),
        ("fdatasync", 1),
        ("fdatasync", 3),
    ];
    survives("/log", &points, |_| {});
}

#[test]
fn a_death_while_a_torn_tail_is_cut_off_loses_nothing() {
    survives("/log", &[("ftruncate64", 1)], |data| {
        let process = quiet(data).ready();
        super::must_push(&process, 0..PUSH);
        assert!(process.terminate().success());
        let segment = data.join("log/00000000000000000000.log");
        let mut segment = std::fs::OpenOptions::new().append(true).open(segment).unwrap();
        segment.write_all(b"EVGF and no more of it").unwrap();
    });
}

#[test]
fn a_death_around_every_change_of_a_checkpoint_loses_nothing() {
    // The pages, then the file that lists them, then the folder.
    let points = [
        ("open64", 1),
        ("write", 1),
        ("fsync", 1),
        ("open64", 2),
        ("write", 2),
        ("fsync", 2),
        ("rename", 1),
        ("fsync", 3),
        ("rename", 2),
        ("fsync", 4),
    ];
    survives("/checkpoints", &points, |_| {});
}

#[test]
fn a_death_while_an_old_checkpoint_is_removed_loses_nothing() {
    survives("/checkpoints", &[("unlink", 1), ("unlink", 2)], |data| {
        let process = quiet(data).ready();
        super::must_push(&process, 0..PUSH);
        process.wait_until("learned", |status| status["learner"]["applied_position"] == PUSH);
        assert!(process.terminate().success());
    });
}

#[test]
fn a_death_around_every_change_of_the_catalog_loses_nothing() {
    let points =
        [("pwrite64", 1), ("pwrite64", 8), ("pwrite64", 30), ("fsync", 1), ("fsync", 6), ("fsync", 10)];
    survives("/catalog.sqlite", &points, |_| {});
}
