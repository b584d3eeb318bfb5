//! Placeholder for `metrics`.
