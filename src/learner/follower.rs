//! The loop of a process that trains with a learner elsewhere: it has no log, no graph and no requests, only what is
//! learned, and computes its share of each step ([`Trainer::follow`]).

use super::LearnerError;
use super::threads::{step_threads, yield_to_serving};
use crate::device::exchange::Exchange;
use crate::train::{FollowError, PreparedBatch, Trainer, TrainerOptions};

/// Trains with the first rank, on so many `threads` of this `nice` value, until that one ends. It waits for it for any
/// time, and for the others within a step not longer than they agreed.
///
/// # Errors
/// Settings or versions differ, a rank is lost, or threads cannot be started.
pub fn follow(
    exchange: Box<dyn Exchange>,
    options: TrainerOptions,
    (threads, nice): (usize, u8),
) -> Result<(), LearnerError> {
    let (rank, ranks) = (exchange.rank(), exchange.ranks());
    yield_to_serving(nice);
    let pool = step_threads(threads, nice)?;
    let follow = || {
        let Some(mut trainer) = Trainer::follow(options, exchange)? else { return Ok(()) };
        tracing::info!(rank, ranks, threads, steps = trainer.steps(), "training with the first rank");
        let (mut batch, mut parcel) = (PreparedBatch::default(), Vec::new());
        while trainer.take_order(&mut batch, &mut parcel)? {}
        tracing::info!(rank, steps = trainer.steps(), "the first rank has ended, and so does this one");
        trainer.leave().map_err(FollowError::from)
    };
    Ok(pool.install(follow)?)
}
