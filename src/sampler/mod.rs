//! Placeholder for `sampler`.
