//! Floor 6: training steps and their evaluation.

pub mod edgebank;
pub mod evaluate;
pub mod negative;
pub mod protocol;
pub mod quantile;
pub mod ranking;
pub mod stream;
