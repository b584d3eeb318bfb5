//! Floor 6: one step of training, and its evaluation.
//!
//! [`Trainer`] scores, learns from and remembers one batch at a time; [`DestinationPool`] is where its
//! random negatives come from.

mod negative;
mod save;
mod step;
mod trainer;

pub use negative::DestinationPool;
pub use save::LoadError;
pub use trainer::{
    Negatives, PhaseSeconds, Positives, StepMode, StepReport, TrainError, Trainer, TrainerOptions, World,
};
