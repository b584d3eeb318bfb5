//! Placeholder for `serving`.
