//! Placeholder for `log`.
