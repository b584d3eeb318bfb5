//! What may go wrong around a daemon, made to go wrong: each fault has a state that names it, and nothing that was
//! acknowledged is lost or doubled. `shim.c` breaks calls of the C library; the rest is done to the daemon from
//! outside. Faults that have their tests elsewhere: a full disk, a damaged checkpoint and a thread that dies in
//! `daemon`, random kills in `crash` and `kafka_daemon`, a broker and positions that are gone in `kafka_ingest`, slow
//! heads and deaf readers in `api`, power loss and torn writes in the log's own tests, spilled pages in `graph_spill`.

mod clients;
mod clock;
mod disk;
mod kafka;
mod kills;
mod memory;
mod stops;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::process::{Process, Start};

/// The compiled shim.
static SHIM: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (path, own) = (folder.join("faults.so"), folder.join(format!("faults.{}.so", std::process::id())));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/faults/shim.c");
    let flags = "-std=c11 -shared -fPIC -O1 -Wall -Wextra -Werror -D_LARGEFILE64_SOURCE -o";
    let mut command = Command::new("gcc");
    let output = command.args(flags.split_whitespace()).arg(&own).arg(source).arg("-ldl").output();
    let output = output.expect("gcc compiles the shim; scripts/setup.sh installs it");
    assert!(output.status.success(), "shim.c: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(own, &path).unwrap();
    path
});

/// Faults of one daemon, which can be changed while it runs.
struct Faults {
    control: tempfile::NamedTempFile,
    path: String,
}

impl Faults {
    /// None yet; those of files will concern paths that hold `path`.
    fn of(path: &str) -> Self {
        let control = tempfile::NamedTempFile::new().unwrap();
        control.as_file().set_len(24).unwrap();
        Self { control, path: path.to_owned() }
    }

    /// Puts a daemon at their mercy.
    fn around(&self, start: Start) -> Start {
        start
            .env("LD_PRELOAD", SHIM.to_str().unwrap())
            .env("FAULT_PATH", &self.path)
            .env("FAULT_CONTROL", self.control.path().to_str().unwrap())
    }

    fn set(&self, number: u64, value: i64) {
        self.control.as_file().write_all_at(&value.to_le_bytes(), number * 8).unwrap();
    }

    /// Adds seconds to the wall clock.
    fn set_clock(&self, seconds: i64) {
        self.set(0, seconds);
    }

    /// Lets every sync take so much longer.
    fn set_sync_ms(&self, milliseconds: i64) {
        self.set(1, milliseconds);
    }

    /// Lets everything that changes a file fail with this number of the system; 0 ends that.
    fn set_error(&self, errno: i64) {
        self.set(2, errno);
    }
}

/// Events as lines of JSON; each has a key of its own, so that it is stored once however often it is sent.
fn lines(events: Range<usize>) -> String {
    let line = |i: usize| {
        let (src, dst, ts) = (i * 7 % 97, i * 13 % 61, i / 3);
        format!("{{\"src\":\"u{src}\",\"dst\":{dst},\"ts\":{ts},\"idempotency_key\":\"e{i}\"}}\n")
    };
    events.map(line).collect()
}

/// Pushes events; the status and what was said, or nothing if the daemon did not answer.
fn push(process: &Process, events: Range<usize>) -> Option<(u16, serde_json::Value)> {
    process.post("/v1/events", "application/x-ndjson", &lines(events)).ok()
}

/// Pushes events that have to be taken.
fn must_push(process: &Process, events: Range<usize>) {
    let (status, said) = push(process, events).expect("the daemon answers");
    assert_eq!(status, 200, "{said}");
}

/// Ends the daemon; then its log holds the first `events` of [`lines`], each once.
fn holds_exactly(process: Process, data: &Path, events: usize) {
    for first in (0..events).step_by(5_000) {
        must_push(&process, first..events.min(first + 5_000));
    }
    process.wait_until("all learned", |status| status["learner"]["applied_position"] == events);
    assert!(process.terminate().success());
    let log = crate::process::log_of(data);
    assert_eq!((&log["records"], &log["edges"]), (&events.into(), &events.into()), "{log}");
}
