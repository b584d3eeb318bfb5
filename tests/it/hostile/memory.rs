//! That none of it takes memory without bound: all other tests of this module once more, in a process that may have no
//! more than so much.

use std::process::Command;

/// Address space of the whole process, samples, graph and runtime included.
const BYTES_MAX: u64 = 2 << 30;

#[test]
fn hostile_input_takes_no_more_memory_than_there_is() {
    if std::env::var_os("EVERGRAPH_HOSTILE_CHILD").is_some() {
        return;
    }
    let Ok(told) = Command::new("prlimit").arg("--version").output() else {
        return crate::skip::skipped("memory cannot be bounded here: prlimit is missing");
    };
    assert!(told.status.success());
    let decoders = ["hostile::events::", "hostile::records::", "hostile::settings::", "hostile::tokens::"];
    let output = Command::new("prlimit")
        .arg(format!("--as={BYTES_MAX}"))
        .arg(std::env::current_exe().unwrap())
        .args(decoders)
        .args(["--test-threads=1", "--nocapture"])
        .env("EVERGRAPH_HOSTILE_CHILD", "1")
        .env("EVERGRAPH_FUZZ_CASES", "200")
        .env_remove("UPDATE")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "within {BYTES_MAX} bytes: {said}");
    assert!(said.contains("forged frames:") && said.contains("csv:"), "all of it ran: {said}");
}
