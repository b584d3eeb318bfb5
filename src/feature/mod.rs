//! Placeholder for `feature`.
