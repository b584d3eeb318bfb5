//! Floor 6: one step of training, and its evaluation.
//!
//! [`Trainer`] scores, learns from and remembers one batch at a time, which was prepared before
//! ([`PreparedBatch`]); [`DestinationPool`] is where its random negatives come from. [`ranking`], [`edgebank`], [`protocol`] and [`evaluate`] measure models the
//! way the papers do.

pub mod edgebank;
pub mod evaluate;
mod look;
mod negative;
mod prepare;
pub mod protocol;
pub mod quantile;
pub mod ranking;
mod save;
mod step;
pub mod stream;
mod trainer;

pub use negative::DestinationPool;
pub use prepare::{PreparedBatch, Preparer};
pub use save::LoadError;
pub use trainer::{
    Negatives, PhaseSeconds, Positives, RankQuery, StepMode, StepReport, TrainError, Trainer, TrainerOptions,
    World,
};
