//! Messages on standard error, data on standard output.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

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

/// A file of a flag for results, `-` being standard output: so that a run of hours does not end with a file that cannot
/// be written. One that is there stays as it is until then.
pub(in crate::cli) fn writable(path: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(path);
    if file.as_os_str() == OsStr::new("-") {
        return Ok(file);
    }
    let is_there = file.exists();
    let opened = OpenOptions::new().append(true).create(true).open(&file);
    opened.map_err(|error| format!("this file cannot be written: {error}"))?;
    if !is_there {
        let _ = fs::remove_file(&file);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_results_are_tried_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let tried = |name: &str| writable(path(name).to_str().unwrap());
        assert_eq!(writable("-"), Ok(PathBuf::from("-")));
        assert_eq!(tried("new"), Ok(path("new")));
        assert!(!path("new").exists());
        fs::write(path("old"), "kept").unwrap();
        assert_eq!(tried("old"), Ok(path("old")));
        assert_eq!(fs::read_to_string(path("old")).unwrap(), "kept");
        assert!(tried("none/new").unwrap_err().contains("cannot be written"));
        assert!(tried("").is_err());
    }
}
