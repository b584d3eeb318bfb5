//! Placeholder for `nn`.
