//! Placeholder for `appender`.
