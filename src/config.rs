//! Placeholder for `config`.
