//! Placeholder for `train`.
