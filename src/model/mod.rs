//! Placeholder for `model`.
