//! Placeholder for `api`.
