//! The daemon's own log: configured at start, its level changeable while it runs. There is one per process.
//!
//! Two kinds of lines have layers of their own, which no level and no directive reaches: the [`AUDIT`], which is always
//! written, and the [`ACCESS`] log, which is written where it is switched on, as JSON.

use std::io::IsTerminal;
use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

use crate::api::{ACCESS, AUDIT, LogLevelResponse, OperatorError};
use crate::config::{Output, OutputFormat, level_filter};

static LOG: OnceLock<Log> = OnceLock::new();

/// Replaces the filter in effect.
type Filter = reload::Handle<EnvFilter, Registry>;

struct Log {
    configured: Mutex<String>,
    level: Mutex<String>,
    filter: Filter,
}

/// Starts the log on standard error. A second start in one process keeps the first one's.
///
/// # Errors
/// When `output.level` is not a filter.
pub fn start(output: &Output) -> Result<()> {
    let json = match output.format {
        OutputFormat::Auto => !std::io::stderr().is_terminal(),
        OutputFormat::Text => false,
        OutputFormat::Json => true,
    };
    let (log, filter) = log(level_filter(&output.level)?, json, std::io::stderr);
    if log.try_init().is_ok() {
        let level = Mutex::new(output.level.clone());
        // Set by the first start of the log only.
        let configured = Mutex::new(output.level.clone());
        let _ = LOG.set(Log { configured, level, filter });
    }
    Ok(())
}

/// A log that writes to `writer`, and the handle of its filter.
fn log<W>(filter: EnvFilter, json: bool, writer: W) -> (impl Subscriber + Send + Sync, Filter)
where
    W: for<'a> MakeWriter<'a> + Clone + Send + Sync + 'static,
{
    type Lines = Box<dyn Layer<Registry> + Send + Sync>;
    let lines = |json: bool| -> Lines {
        let lines = fmt::layer().with_writer(writer.clone());
        if json { lines.json().flatten_event(true).boxed() } else { lines.with_target(false).boxed() }
    };
    let (filter, handle) = reload::Layer::new(filter);
    let others = Targets::new()
        .with_default(LevelFilter::TRACE)
        .with_targets([AUDIT, ACCESS].map(|own| (own, LevelFilter::OFF)));
    let only = |target: &'static str| Targets::new().with_target(target, LevelFilter::INFO);
    let layers: Vec<Lines> = vec![
        lines(json).with_filter(filter.and(others)).boxed(),
        lines(json).with_filter(only(AUDIT)).boxed(),
        lines(true).with_filter(only(ACCESS)).boxed(),
    ];
    (registry().with(layers), handle)
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
    log.filter.reload(filter).map_err(|error| OperatorError::Failed(error.to_string()))?;
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn writer(&self) -> impl Fn() -> Self + Clone + Send + Sync + 'static {
            let lines = self.clone();
            move || lines.clone()
        }

        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
        }
    }

    #[test]
    fn migrations_report_only_where_a_filter_names_them() {
        let lines = Lines::default();
        let (log, filter) = log(level_filter("info").unwrap(), false, lines.writer());
        let written = || {
            tracing::info!(target: "refinery_core::traits", "no migrations to apply");
            tracing::info!("ordinary");
            lines.take()
        };
        tracing::subscriber::with_default(log, || {
            let usual = written();
            assert!(usual.contains("ordinary") && !usual.contains("migrations"), "{usual}");
            filter.reload(level_filter("info,refinery_core=info").unwrap()).unwrap();
            assert!(written().contains("migrations"));
        });
    }

    #[test]
    fn no_filter_reaches_the_audit_and_the_access_log() {
        let lines = Lines::default();
        let (log, filter) = log(EnvFilter::new("info"), false, lines.writer());
        let written = || {
            tracing::info!("ordinary");
            tracing::info!(target: AUDIT, action = "x", "audited");
            tracing::info!(target: ACCESS, status = 200, "accessed");
            lines.take()
        };
        tracing::subscriber::with_default(log, || {
            let all = written();
            assert!(all.contains("ordinary") && all.contains("\"status\":200"), "{all}");
            assert_eq!(all.lines().count(), 3, "each once: {all}");
            for silence in
                ["off", "evergraph::audit=off,evergraph::access=off", "off,[{action}]=off,[{status}]=off"]
            {
                filter.reload(EnvFilter::new(silence)).unwrap();
                let left = written();
                assert!(left.contains("audited") && left.contains("accessed"), "{silence}: {left}");
                assert!(!left.contains("ordinary"), "{silence}: {left}");
            }
        });
    }
}
