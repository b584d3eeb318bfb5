//! One way to say that something was not tested. A test runner swallows what a passing test prints, so it is
//! also written to a file, which `make test` shows at its end.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Says that the test of this thread, or a part of it, is skipped, and what is missing. The file is
/// `EVERGRAPH_SKIPS`, or `skipped.txt` in cargo's folder for the files of tests.
pub fn skipped(missing: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread of a test");
    eprintln!("\n*** SKIPPED: {test}: {missing} ***\n");
    let one_line = missing.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path()).unwrap();
    // One write, so that lines of several tests do not mix.
    file.write_all(format!("{test}: {one_line}\n").as_bytes()).unwrap();
}

fn path() -> PathBuf {
    let named = std::env::var_os("EVERGRAPH_SKIPS").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped.txt"))
}

#[test]
fn a_skip_leaves_a_line_in_a_file() {
    // A process of its own, so that what other tests skip does not mix in.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("skips");
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "skip::says_so_when_asked", "--ignored"])
        .env("EVERGRAPH_SKIPS", &file)
        .output()
        .unwrap();
    assert!(again.status.success(), "{again:?}");
    let written = std::fs::read_to_string(file).unwrap();
    assert_eq!(written, "skip::says_so_when_asked: a moon on two lines\n");
}

/// What the test above runs.
#[test]
#[ignore = "run by a_skip_leaves_a_line_in_a_file"]
fn says_so_when_asked() {
    if std::env::var_os("EVERGRAPH_SKIPS").is_some_and(|path| Path::new(&path).ends_with("skips")) {
        skipped("a moon\n on two lines");
    }
}
