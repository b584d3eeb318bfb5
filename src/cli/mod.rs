//! Placeholder for `cli`.
