//! The daemon's own log: configured at start, its level changeable while it runs. There is one per process.
//!
//! Admin actions are logged at any level: the target [`AUDIT`] is never silent.

use std::io::IsTerminal;
use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use crate::api::{AUDIT, LogLevelResponse, OperatorError};
use crate::config::{Output, OutputFormat, level_filter};

static LOG: OnceLock<Log> = OnceLock::new();

/// Replaces the filter in effect.
type Reload = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

struct Log {
    configured: Mutex<String>,
    level: Mutex<String>,
    reload: Reload,
}

/// Starts the log on standard error. A second start in one process keeps the first one's.
///
/// # Errors
/// When `output.level` is not a filter.
pub fn start(output: &Output) -> Result<()> {
    let filter = with_audit(level_filter(&output.level)?);
    let json = match output.format {
        OutputFormat::Auto => !std::io::stderr().is_terminal(),
        OutputFormat::Text => false,
        OutputFormat::Json => true,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let reload: Option<Reload> = if json {
        let builder = builder.json().flatten_event(true).with_filter_reloading();
        let handle = builder.reload_handle();
        let reload: Reload = Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()));
        builder.try_init().ok().map(|()| reload)
    } else {
        let builder = builder.with_target(false).with_filter_reloading();
        let handle = builder.reload_handle();
        let reload: Reload = Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()));
        builder.try_init().ok().map(|()| reload)
    };
    if let Some(reload) = reload {
        let level = Mutex::new(output.level.clone());
        // Set by the first start of the log only.
        let configured = Mutex::new(output.level.clone());
        let _ = LOG.set(Log { configured, level, reload });
    }
    Ok(())
}

/// A filter, plus the audit log.
fn with_audit(filter: EnvFilter) -> EnvFilter {
    match format!("{AUDIT}=info").parse::<Directive>() {
        Ok(audit) => filter.add_directive(audit),
        Err(_) => filter,
    }
}

/// The level in effect; empty where this process did not start a log.
pub(super) fn get() -> LogLevelResponse {
    let response = |log: &Log| LogLevelResponse {
        level: log.level.lock().clone(),
        configured: log.configured.lock().clone(),
    };
    let none = || LogLevelResponse { level: String::new(), configured: String::new() };
    LOG.get().map_or_else(none, response)
}

/// Changes the level until the process ends.
///
/// # Errors
/// When it is no filter, or this process did not start the log.
pub(super) fn set(level: &str) -> Result<LogLevelResponse, OperatorError> {
    let filter = level_filter(level).map_err(|error| {
        OperatorError::Invalid(error.to_string().replacen("output.level = ", "the level ", 1))
    })?;
    let Some(log) = LOG.get() else {
        return Err(OperatorError::Failed("the log of this process is not the daemon's".to_owned()));
    };
    let mut current = log.level.lock();
    (log.reload)(with_audit(filter)).map_err(OperatorError::Failed)?;
    level.clone_into(&mut current);
    Ok(LogLevelResponse { level: current.clone(), configured: log.configured.lock().clone() })
}

/// Takes over a level of the settings, also from an operator who had set another.
///
/// # Errors
/// When it is no filter.
pub fn configure(level: &str) -> Result<()> {
    set(level).map_err(|error| anyhow!("{error}"))?;
    if let Some(log) = LOG.get() {
        level.clone_into(&mut log.configured.lock());
    }
    Ok(())
}
