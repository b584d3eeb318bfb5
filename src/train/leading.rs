//! Steps that the first of several ranks leads: it has graph and feature rows, prepares every batch whole, and decides
//! what comes next; the others have what is learned, and compute their shares of what it passes to them
//! ([`orders`](super::orders)).

use std::io::{Error, Write};

use thiserror::Error as Reason;
use xxhash_rust::xxh3::xxh3_64;

use super::handing_over::{Receiver, Sender};
use super::orders::{Change, Order};
use super::prepare::PreparedBatch;
use super::ranks::{Ranks, RanksError};
use super::save::LoadError;
use super::trainer::{TrainError, Trainer, TrainerOptions};
use crate::device::Device;
use crate::device::exchange::Exchange;
use crate::model::tables::{read_table, read_u64, write_table, write_u64};
use crate::model::walk::WalkState;

/// The version of this program, and of what is passed between ranks, which grows whenever that changes.
const VERSION: &[u8] = concat!(env!("CARGO_PKG_VERSION"), ", format 4").as_bytes();

/// Why a rank does not follow the first one.
#[derive(Debug, Reason)]
pub enum FollowError {
    /// What the first rank has learned does not fit the settings here.
    #[error("what the first rank has learned cannot be used here: {0}; all ranks need the same settings")]
    Load(#[from] LoadError),
    /// It runs another version.
    #[error(
        "the first rank runs Evergraph {first}, this one {}: all ranks have to run the same program",
        String::from_utf8_lossy(VERSION)
    )]
    Version {
        /// What the first runs.
        first: String,
    },
    /// A step failed.
    #[error(transparent)]
    Step(#[from] TrainError),
}

impl From<RanksError> for FollowError {
    fn from(error: RanksError) -> Self {
        Self::Step(error.into())
    }
}

impl Trainer {
    /// Takes every step from now on together with the other ranks, which [`follow`](Self::follow) this one, and first
    /// passes on to them what was learned. That takes as long as they need for it; `alive` is called meanwhile.
    ///
    /// # Errors
    /// The ranks cannot share the model's steps, are too many or no power of two, or one has other settings.
    pub fn lead(&mut self, exchange: Box<dyn Exchange>, alive: &dyn Fn()) -> Result<(), RanksError> {
        self.hold_shared(&*exchange)?;
        let mut ranks = Ranks::leading(exchange);
        ranks.give_plain(Order::Begin)?;
        let mut sender = Sender::new(&mut *ranks.exchange, alive);
        let sent = self.hand_over(&mut sender).and_then(|()| sender.end());
        let digest = self.digest_with(sent.map_err(RanksError::State)?);
        ranks.compare_patiently(digest, self.steps, alive)?;
        self.scratch.get_mut().ranks = Some(ranks);
        Ok(())
    }

    /// A trainer that goes on from what the first rank has learned, and takes steps with it
    /// ([`take_order`](Self::take_order)); `None` if that one ends before. Waits for it as long as it takes.
    ///
    /// # Errors
    /// The settings, the versions or the states differ, or a rank is lost.
    pub fn follow(options: TrainerOptions, exchange: Box<dyn Exchange>) -> Result<Option<Self>, FollowError> {
        let mut ranks = Ranks::new(exchange);
        match ranks.next_order(&mut Vec::new())? {
            Order::Begin => {}
            Order::End => return Ok(ranks.leave().map(|()| None)?),
            _ => return Err(RanksError::Passed(Error::other("the first order is no beginning")).into()),
        }
        let mut receiver = Receiver::new(&mut *ranks.exchange);
        let first: Vec<u8> = read_table(&mut receiver).map_err(RanksError::Passed)?;
        if first != VERSION {
            return Err(FollowError::Version { first: String::from_utf8_lossy(&first).into_owned() });
        }
        let pairs_max = read_u64(&mut receiver).map_err(RanksError::Passed)?;
        let mut trainer = Self::load(options, &Device::Cpu, &mut receiver)?;
        trainer.limit_pairs(usize::try_from(pairs_max).unwrap_or(0));
        let digest = trainer.digest_with(receiver.end().map_err(RanksError::Passed)?);
        ranks.compare_patiently(digest, trainer.steps, &|| ())?;
        trainer.scratch.get_mut().ranks = Some(ranks);
        Ok(Some(trainer))
    }

    /// Writes what [`follow`](Self::follow) reads.
    fn hand_over(&self, out: &mut impl Write) -> std::io::Result<()> {
        write_table(out, VERSION)?;
        write_u64(out, self.state.walks.as_ref().map_or(0, WalkState::pairs_max) as u64)?;
        self.save(out)
    }

    /// A digest of what was passed on, and of what ranks have in common beyond it.
    fn digest_with(&self, passed: u64) -> u64 {
        xxh3_64(format!("{passed:x} {}", self.in_common()).as_bytes())
    }

    /// Follows the next order of the first rank, which may take as long as it likes; `false` when it is the last.
    /// `batch` is room for its batch, the same for all orders.
    ///
    /// # Errors
    /// The ranks cannot go on together.
    pub fn take_order(
        &mut self,
        batch: &mut PreparedBatch,
        parcel: &mut Vec<u8>,
    ) -> Result<bool, TrainError> {
        let Some(ranks) = &mut self.scratch.get_mut().ranks else { return Ok(false) };
        let order = ranks.next_order(parcel)?;
        let Some(share) = ranks.share().filter(|_| order != Order::End) else { return Ok(false) };
        let mut input = &parcel[..];
        let changes: Vec<u8> = read_table(&mut input).map_err(RanksError::Passed)?;
        self.apply_noted(&changes)?;
        let needs = self.model.needs();
        let Some(ranks) = &mut self.scratch.get_mut().ranks else { return Ok(false) };
        batch.read_for((&needs, share), &mut ranks.kept, &mut input).map_err(RanksError::Passed)?;
        let done = match order {
            Order::TestAndStep => self.test_and_step(batch).map(drop),
            Order::Replay(key) => self.replay_prepared(batch, key).map(drop),
            _ => self.step_prepared(batch).map(drop),
        };
        match done {
            // The first rank has found the same.
            Err(TrainError::NonFinite { .. }) | Ok(()) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Passes to ranks that follow what they compute of `batch`.
    pub(super) fn hand_out(&mut self, order: Order, batch: &PreparedBatch) -> Result<(), TrainError> {
        let needs = self.model.needs();
        match &mut self.scratch.get_mut().ranks {
            Some(ranks) => {
                Ok(ranks.give(order, |share, sent, parcel| batch.write_for((&needs, share), sent, parcel))?)
            }
            None => Ok(()),
        }
    }

    /// Has ranks that follow make this change before their next step.
    pub(super) fn note(&mut self, change: Change<'_>) {
        let ranks = self.scratch.get_mut().ranks.as_mut();
        if let Some(leading) = ranks.and_then(|ranks| ranks.leading.as_mut()) {
            leading.note(change);
        }
    }
}
