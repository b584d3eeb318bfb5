//! Placeholder for `device`.
