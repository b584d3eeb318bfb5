//! Words to people on standard error, data to programs on standard output, and the daemon's own log.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::config::{Output, OutputFormat};

/// Writes data to standard output. A reader that went away is not an error.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

/// Says to a person what went wrong, with its causes.
pub(super) fn complain(error: &anyhow::Error) {
    tell(&format!("error: {error:#}"));
}

/// Says something to a person. When standard error is closed nobody listens.
pub(super) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Starts the daemon's log on standard error.
///
/// # Errors
/// When `output.level` is not a filter.
pub(super) fn start_log(output: &Output) -> Result<()> {
    let filter = EnvFilter::try_new(&output.level)
        .with_context(|| format!("output.level = {:?}: not a level or filter", output.level))?;
    let json = match output.format {
        OutputFormat::Auto => !std::io::stderr().is_terminal(),
        OutputFormat::Text => false,
        OutputFormat::Json => true,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start in one process (tests) keeps the first one's log.
    let _ = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_target(false).try_init()
    };
    Ok(())
}
