//! Ends that come at a bad moment: while a checkpoint is written, and a second one on top of the first.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Faults, holds_exactly, must_push};
use crate::process::{PATIENCE, Process, Start, evergraph};

const EVENTS: usize = 300;

/// A daemon that has learned all events and takes long over the checkpoint that it writes.
fn at_a_checkpoint(data: &Path, faults: &Faults) -> Process {
    let process = faults.around(Start::in_dir(data).set("checkpoint.interval_seconds=1")).ready();
    must_push(&process, 0..EVENTS);
    process.wait_until("learned", |status| status["learner"]["applied_position"] == EVENTS);
    let deadline = Instant::now() + PATIENCE;
    while !names(data).iter().any(|name| name.ends_with(".tmp")) {
        assert!(Instant::now() < deadline, "no checkpoint is begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    process
}

fn names(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("checkpoints")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_stop_during_a_checkpoint_waits_for_it_and_goes_on_from_it() {
    let (data, faults) = (tempfile::tempdir().unwrap(), Faults::of("/checkpoints"));
    faults.set_sync_ms(700);
    let process = at_a_checkpoint(data.path(), &faults);
    let asked = Instant::now();
    assert!(process.terminate().success());
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    let unfinished: Vec<_> = names(data.path()).into_iter().filter(|name| name.ends_with(".tmp")).collect();
    assert!(unfinished.is_empty(), "{unfinished:?}");

    let process = Start::in_dir(data.path()).set("learner.train=false").ready();
    let status = process.status();
    assert_eq!(status["learner"]["applied_position"], EVENTS, "it goes on from the checkpoint: {status}");
    holds_exactly(process, data.path(), EVENTS);
}

#[test]
fn a_second_signal_ends_at_once_and_loses_nothing() {
    let (data, faults) = (tempfile::tempdir().unwrap(), Faults::of("/checkpoints"));
    faults.set_sync_ms(30_000);
    let mut process = at_a_checkpoint(data.path(), &faults);
    process.signal("-TERM");
    process.wait_for_line("a second signal ends at once").expect("the first one is told");
    let asked = Instant::now();
    process.signal("-TERM");
    assert_eq!(process.ended().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    holds_exactly(Start::in_dir(data.path()).ready(), data.path(), EVENTS);
}

#[test]
fn a_hangup_reloads_what_can_be_reloaded_and_never_ends_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let (data, settings) = (folder.path().join("data"), folder.path().join("evergraph.toml"));
    let write = |text: &str| std::fs::write(&settings, text).unwrap();
    write("[output]\nlevel = \"info\"\n");
    let start = Start::in_dir(&data).config(&settings);
    let mut process = start.spawn();
    // The log is the first sign of life; signals are handled before it.
    process.wait_for_line("memory budgets").expect("it starts");
    process.signal("-HUP");
    process.wait_until_ready();
    process.wait_for_line("\"reloaded\"").expect("a hangup during the start is not lost");

    write("[output]\nlevel = \"info,evergraph::appender=debug\"\n[learner]\nbatch_events = 7\n");
    process.signal("-HUP");
    let line = process.wait_for_line("next start").expect("what has to wait is named");
    assert!(line.contains("learner.batch_events") && !line.contains("output.level"), "{line}");
    process.wait_for_line("\"reloaded\"").expect("the rest is taken over");
    let (_, level) = process.get("/v1/admin/log-level").unwrap();
    assert_eq!(level["level"], "info,evergraph::appender=debug", "{level}");

    // The same by the API and the command line, with what changed.
    write("[output]\nlevel = \"info\"\n[learner]\nbatch_events = 7\n[log]\nretention_bytes = 9000000\n");
    let (done, said, told) = evergraph(&["config", "reload", "--url", &process.url("")]);
    assert!(done, "{told}");
    for line in
        ["log.retention_bytes: 0 -> 9000000, in effect", "learner.batch_events: 200 -> 7, waits for a start"]
    {
        assert!(said.contains(line), "{said}");
    }
    write("[output]\nlevel = \"info\"\n[log]\nretention_bytes = -1\n");
    let (done, _, told) = evergraph(&["config", "reload", "--url", &process.url("")]);
    assert!(!done && told.contains("log.retention_bytes"), "{told}");
    write("[output]\nlevel = \"info,evergraph::appender=debug\"\n[learner]\nbatch_events = 7\n");
    assert_eq!(process.post("/v1/admin/reload", "application/json", "{}").unwrap().0, 200);

    write("[output]\nlevle = \"info\"\n");
    process.signal("-HUP");
    let line = process.wait_for_line("settings in effect stay").expect("a mistake is told");
    assert!(line.contains("levle"), "{line}");
    must_push(&process, 0..10);
    holds_exactly(process, &data, 10);
}
