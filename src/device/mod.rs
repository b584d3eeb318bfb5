//! Floor 1: where numbers live.

pub mod rng;
