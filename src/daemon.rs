//! Placeholder for `daemon`.
