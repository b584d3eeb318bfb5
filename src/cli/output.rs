//! Messages on standard error, data on standard output.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::builder::{PathBufValueParser, TypedValueParser};

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
pub(in crate::cli) fn writable() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(tried)
}

fn tried(file: PathBuf) -> Result<PathBuf, String> {
    let opened = match fs::symlink_metadata(&file) {
        _ if file.as_os_str() == "-" => Ok(()),
        // One that is no file, such as a pipe, has a reader who would notice.
        Ok(facts) if facts.is_file() => OpenOptions::new().append(true).open(&file).map(drop),
        Ok(facts) if facts.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(()),
        Err(_) => {
            OpenOptions::new().write(true).create_new(true).open(&file).and_then(|_| fs::remove_file(&file))
        }
    };
    opened.map(|()| file).map_err(|error| format!("this file cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_results_are_tried_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let tried = |name: &str| super::tried(path(name));
        assert_eq!(super::tried("-".into()), Ok("-".into()));
        assert_eq!(tried("new"), Ok(path("new")));
        assert!(!path("new").exists());
        fs::write(path("old"), "kept").unwrap();
        assert_eq!(tried("old"), Ok(path("old")));
        assert_eq!(fs::read_to_string(path("old")).unwrap(), "kept");
        assert!(tried("none/new").unwrap_err().contains("cannot be written"));
        assert!(tried("").is_err(), "a folder");
        std::os::unix::fs::symlink(path("nowhere"), path("link")).unwrap();
        assert_eq!(tried("link"), Ok(path("link")));
        assert!(path("link").is_symlink() && !path("nowhere").exists());
    }
}
