//! Floor 6: one step of training, and its evaluation.
//!
//! [`Trainer`] scores, learns from and applies one batch at a time, which was prepared before
//! ([`PreparedBatch`]), by [`lookahead`] while the step before it was taken; [`StreamNegatives`] is where the
//! negatives of a model that follows a stream come from, [`DestinationPool`] those of the published protocols.
//! [`schedule`] is the course of its step size, [`share`] what it trains on where it cannot train on all,
//! [`replay`] what it trains on again; [`trial`] shows how fast a device takes its steps.
//! [`ranking`], [`edgebank`], [`popularity`], [`protocol`] and [`evaluate`] measure models the
//! way the papers do.

mod ahead;
mod changes;
mod chooser;
mod edge_cache;
pub mod edgebank;
pub mod evaluate;
mod expect;
mod foreseen;
mod fresh;
mod gpu;
mod handing_over;
pub mod historical;
mod inference;
mod leading;
pub mod lookahead;
mod meanwhile;
mod met;
mod negative;
mod orders;
mod pairs;
mod pass;
mod passed;
mod placed;
pub mod popularity;
mod prepare;
pub mod protocol;
mod publish;
pub mod quantile;
mod rank_steps;
pub mod ranking;
mod ranks;
pub mod replay;
mod report;
mod save;
pub mod schedule;
mod shards;
pub mod share;
mod shared_rows;
mod step;
pub mod stream;
mod stream_negatives;
mod table;
mod trainer;
pub mod trial;
mod weight_update;

pub use leading::FollowError;
pub use meanwhile::{GetReady, Meanwhile};
pub use met::{MetDestinations, met_share};
pub use negative::DestinationPool;
pub use prepare::{PreparedBatch, Preparer};
pub use publish::ComingRows;
pub use rank_steps::{RANKS_MAX, not_shared};
pub use ranks::RanksError;
pub use save::{LoadError, SavedTrainer};
pub use stream_negatives::{RECENT_EVENTS, Rivals, StreamNegatives};
pub use trainer::{
    GRADIENT_DELAY_BATCHES, Negatives, PhaseSeconds, Positives, RankQuery, StepMode, StepReport, TrainError,
    Trainer, TrainerOptions, World,
};
