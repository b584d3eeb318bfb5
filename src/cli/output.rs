//! Messages on standard error, data on standard output.

use std::io::Write;

use anyhow::{Context, Result};

/// Writes data to standard output. A reader that went away is not an error.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

/// Prints an error with its causes.
pub(super) fn complain(error: &anyhow::Error) {
    print_status(&format!("error: {error:#}"));
}

/// Prints a message to standard error; a closed standard error is ignored.
pub fn print_status(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
