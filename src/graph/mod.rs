//! Placeholder for `graph`.
