//! The wall clock is set while the daemon works: a day forward, then two days back.

use std::time::Duration;

use super::{Faults, holds_exactly, must_push};
use crate::process::{Process, Start};

const DAY: i64 = 86_400;

/// The value of a series without labels.
fn metric(process: &Process, name: &str) -> f64 {
    let (_, text) = process.get("/metrics").unwrap();
    let line = text.as_str().unwrap().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not there")).parse().unwrap()
}

#[test]
fn a_clock_that_jumps_stops_nothing_and_falsifies_nothing() {
    let (data, faults) = (tempfile::tempdir().unwrap(), Faults::of("/nothing"));
    let start = faults.around(Start::in_dir(data.path()).set("checkpoint.interval_seconds=1"));
    let process = start.ready();
    let mut pushed = 0;
    for jump in [0, DAY, -DAY, 0] {
        faults.set_clock(jump);
        let before = metric(&process, "evergraph_checkpoint_duration_seconds_count");
        must_push(&process, pushed..pushed + 200);
        pushed += 200;
        process.wait_until("learned", |status| status["learner"]["applied_position"] == pushed);
        let mut waited = 0;
        while metric(&process, "evergraph_checkpoint_duration_seconds_count") == before {
            std::thread::sleep(Duration::from_millis(50));
            waited += 1;
            assert!(waited < 400, "no checkpoint after a jump of {jump} s");
        }
        for path in ["/livez", "/readyz"] {
            let (status, said) = process.get(path).unwrap();
            assert_eq!(status, 200, "after a jump of {jump} s: {said}");
        }
        // An event that seems to come from the future was visible at once, not before it was there.
        let visible = metric(&process, "evergraph_end_to_end_freshness_seconds_sum");
        assert!(visible >= 0.0 && visible.is_finite(), "{visible} s after a jump of {jump} s");
    }
    faults.set_clock(-DAY);
    assert!(process.terminate().success());
    holds_exactly(start.ready(), data.path(), pushed);
}
