//! The Python package in `clients/python`: formatting, lints, types and its own tests, against the program under test.
//! What it promises is tested there; this file only runs it.

use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/python.sh");

/// Whether `scripts/setup.sh test` put its tools in place.
fn is_installed() -> bool {
    let read = |file: &str| std::fs::read(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).ok();
    let installed = read(".cache/tools/python-client/installed");
    if installed.is_some() && installed == read("scripts/python-client.txt") {
        return true;
    }
    let required = std::env::var_os("EVERGRAPH_PYTHON_CLIENT").is_some();
    assert!(!required, "EVERGRAPH_PYTHON_CLIENT requires what scripts/python.sh install puts in place");
    crate::skip::skipped("the Python package is not tested: run scripts/python.sh install");
    false
}

#[test]
fn the_python_package_passes_its_checks() {
    if !is_installed() {
        return;
    }
    let mut command = Command::new(SCRIPT);
    let output = command.arg("check").env("EVERGRAPH_BIN", env!("CARGO_BIN_EXE_evergraph")).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "scripts/python.sh check: {said}");
    assert!(said.contains(" passed") && !said.contains("skipped"), "every test ran: {said}");
}
