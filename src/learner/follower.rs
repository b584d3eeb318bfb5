//! The loop of a process that trains with a learner elsewhere: it has no log, no graph and no requests, only what is
//! learned, and computes its share of each step ([`train::follow`](Trainer::follow)).

use super::LearnerError;
use super::threads::{step_threads, yield_to_serving};
use crate::device::exchange::Exchange;
use crate::train::{FollowError, PreparedBatch, Trainer, TrainerOptions};

/// The settings that a learner has, too.
#[derive(Clone, Copy, Debug)]
pub struct FollowerOptions {
    /// What is trained.
    pub trainer: TrainerOptions,
    /// Pairs that a model keeps that knows pairs; 0: any number.
    pub pairs_max: usize,
    /// Threads that compute steps; 0 is half of the cores, two at least.
    pub threads: usize,
    /// Nice value of these threads, 0 to 19.
    pub nice: u8,
}

/// Trains with the first rank until that one ends. It waits for it for any time, and for the others within a step not
/// longer than they agreed.
///
/// # Errors
/// Settings or versions differ, a rank is lost, or threads cannot be started.
pub fn follow(exchange: Box<dyn Exchange>, options: &FollowerOptions) -> Result<(), LearnerError> {
    let (rank, ranks) = (exchange.rank(), exchange.ranks());
    yield_to_serving(options.nice);
    let threads = step_threads(options.threads, options.nice)?;
    let follow = || {
        let mut trainer = Trainer::follow(options.trainer, exchange, |trainer| {
            trainer.limit_pairs(options.pairs_max);
        })?;
        tracing::info!(rank, ranks, steps = trainer.steps(), "training with the first rank");
        let (mut batch, mut parcel) = (PreparedBatch::default(), Vec::new());
        while trainer.take_order(&mut batch, &mut parcel)? {}
        tracing::info!(rank, steps = trainer.steps(), "the first rank has ended, and so does this one");
        trainer.leave().map_err(FollowError::from)
    };
    Ok(threads.install(follow)?)
}
