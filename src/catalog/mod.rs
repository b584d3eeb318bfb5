//! Placeholder for `catalog`.
