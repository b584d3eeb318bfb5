//! [`LearnerError`]: why the loop of a learner, or of a rank that follows one, has ended.

use thiserror::Error;

use crate::log::LogError;
use crate::train::{FollowError, TrainError};

/// Why the loop ended.
#[derive(Debug, Error)]
pub enum LearnerError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A trainer error that a later batch would not clear.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A rank that follows another one cannot go on with it.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The threads of the steps cannot be started.
    #[error("{threads} threads for training cannot be started: {source}; set learner.threads lower")]
    Threads {
        /// How many.
        threads: usize,
        /// Why not.
        source: rayon::ThreadPoolBuildError,
    },
}
