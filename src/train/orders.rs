//! [`Order`]: what the first rank has the others do, where it alone has graph and feature rows.
//!
//! The first rank prepares each batch whole and passes to every other one the share that it computes, with the changes
//! since the last order that are no steps ([`Change`]). All then take the step together, as ranks that prepared it
//! themselves do. An order is a head of fixed length and a parcel, cut into pieces that a message may have:
//!
//! ```text
//! head     order, its key, bytes of the parcel, pieces of the longest one
//! parcel   changes, batch
//! ```
//! The first order has no parcel: what was learned follows it ([`handing_over`](super::handing_over)).

use bytemuck::{bytes_of, bytes_of_mut};
use rayon::prelude::*;

use super::ranks::{Ranks, RanksError, Share};
use super::trainer::Trainer;
use crate::device::Device;
use crate::device::exchange::{Exchange, ExchangeError, Message, PIECE_BYTES, to_others};
use crate::event::{EventTime, NodeId};
use crate::model::tables::{read_table, read_u64, write_table, write_u64};
use crate::model::{ModelOptions, SentRows, Weights};
use crate::nn::Parameters;

/// What the other ranks do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Go on from what the first rank has learned.
    Begin,
    /// Take the step of a batch.
    Step,
    /// The same, and score it without dropout.
    TestAndStep,
    /// Learn from a batch of old events, with this key.
    Replay(u64),
    /// Part from one another.
    End,
}

/// A change of what was learned that is no step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change<'a> {
    Forget(&'a [NodeId]),
    ForgetPairs(&'a [NodeId]),
    KeepPairsSince(EventTime),
    GoOnFrom(&'a Weights),
}

/// What the first rank keeps between orders.
#[derive(Default)]
pub(super) struct Leading {
    /// Changes since the last order, as they are passed on.
    changes: Vec<u8>,
    /// Why one of them cannot be passed on.
    failed: Option<std::io::Error>,
    /// Parcels of the other ranks.
    parcels: Vec<Vec<u8>>,
    /// The rows that each of them got before.
    sent: Vec<SentRows>,
}

impl Order {
    fn to_numbers(self) -> [u64; 2] {
        match self {
            Self::Begin => [0, 0],
            Self::Step => [1, 0],
            Self::TestAndStep => [2, 0],
            Self::Replay(key) => [3, key],
            Self::End => [4, 0],
        }
    }

    fn from_numbers(numbers: [u64; 2]) -> Option<Self> {
        let all = [Self::Begin, Self::Step, Self::TestAndStep, Self::Replay(numbers[1]), Self::End];
        all.into_iter().find(|order| order.to_numbers() == numbers)
    }
}

impl Leading {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let parcels = self.parcels.iter().map(Vec::capacity).sum::<usize>();
        self.changes.capacity() + parcels + self.sent.iter().map(SentRows::bytes).sum::<usize>()
    }

    /// Takes in a change for the next order, which fails if it cannot be passed on.
    pub fn note(&mut self, change: Change<'_>) {
        if let Err(error) = write_change(&mut self.changes, change) {
            self.failed = Some(error);
        }
    }
}

fn write_change(out: &mut Vec<u8>, change: Change<'_>) -> std::io::Result<()> {
    match change {
        Change::Forget(nodes) => write_u64(out, 0).and_then(|()| write_table(out, nodes)),
        Change::ForgetPairs(nodes) => write_u64(out, 1).and_then(|()| write_table(out, nodes)),
        Change::KeepPairsSince(since) => {
            write_u64(out, 2).and_then(|()| write_u64(out, since.0.cast_unsigned()))
        }
        Change::GoOnFrom(weights) => {
            let bytes = weights.parameters().to_bytes().map_err(std::io::Error::other)?;
            write_u64(out, 3)?;
            write_u64(out, weights.version)?;
            write_table(out, &bytes)
        }
    }
}

impl Ranks {
    /// Has the others follow `order`; `write` adds the batch of a share to a parcel.
    pub fn give(
        &mut self,
        order: Order,
        write: impl Fn(Share, &mut SentRows, &mut Vec<u8>) -> std::io::Result<()> + Sync,
    ) -> Result<(), RanksError> {
        let (ranks, Some(leading)) = (self.exchange.ranks(), &mut self.leading) else { return Ok(()) };
        let Leading { changes, failed, parcels, sent } = leading;
        if let Some(failed) = failed.take() {
            return Err(RanksError::Passed(failed));
        }
        parcels.resize_with(ranks - 1, Vec::new);
        sent.resize_with(ranks - 1, SentRows::default);
        let write = |(rank, (parcel, sent)): (usize, (&mut Vec<u8>, &mut SentRows))| {
            parcel.clear();
            write_table(parcel, changes)?;
            write(Share { rank: rank + 1, ranks }, sent, parcel)
        };
        let written = parcels.par_iter_mut().zip(sent.par_iter_mut()).enumerate().try_for_each(write);
        written.map_err(RanksError::Passed)?;
        changes.clear();
        let parcels: Vec<&[u8]> = parcels.iter().map(Vec::as_slice).collect();
        Ok(pass(&mut *self.exchange, order, &parcels)?)
    }

    /// Has the others follow `order`, which has no parcel.
    pub fn give_plain(&mut self, order: Order) -> Result<(), RanksError> {
        let none: Vec<&[u8]> = vec![&[]; self.exchange.ranks() - 1];
        Ok(pass(&mut *self.exchange, order, &none)?)
    }

    /// The next order of the first rank, however long that takes, and its parcel.
    pub fn next_order(&mut self, parcel: &mut Vec<u8>) -> Result<Order, RanksError> {
        let mut head = [0_u64; 4];
        let received = bytes_of_mut(&mut head);
        self.exchange.patient_round(&mut [Message { rank: 0, sent: &[], received }], &|| ())?;
        let [order, key, length, pieces] = head;
        let order = Order::from_numbers([order, key]).ok_or_else(|| damaged("an unknown order"))?;
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        parcel.clear();
        parcel.try_reserve(bytes).map_err(|_| ExchangeError::TooLong { bytes })?;
        parcel.resize(bytes, 0);
        for piece in 0..usize::try_from(pieces).unwrap_or_default() {
            let [begin, end] = [piece, piece + 1].map(|piece| piece.saturating_mul(PIECE_BYTES).min(bytes));
            let received = &mut parcel[begin..end];
            self.exchange.round(&mut [Message { rank: 0, sent: &[], received }])?;
        }
        Ok(order)
    }
}

impl Trainer {
    /// Applies changes that the first rank has noted.
    pub(super) fn apply_noted(&mut self, mut changes: &[u8]) -> Result<(), RanksError> {
        while !changes.is_empty() {
            self.apply_one(&mut changes).map_err(RanksError::Passed)?;
        }
        Ok(())
    }

    fn apply_one(&mut self, input: &mut &[u8]) -> std::io::Result<()> {
        match read_u64(input)? {
            0 => drop(self.forget(&read_table::<NodeId>(input)?)),
            1 => self.forget_pairs(&read_table::<NodeId>(input)?),
            2 => self.keep_pairs_since(EventTime(read_u64(input)?.cast_signed())),
            3 => {
                let (version, bytes) = (read_u64(input)?, read_table::<u8>(input)?);
                let weights =
                    weights(self.options().model, version, &bytes).map_err(std::io::Error::other)?;
                self.go_on_from(&weights).map_err(std::io::Error::other)?;
            }
            _ => return Err(std::io::Error::other("an unknown change")),
        }
        Ok(())
    }
}

fn weights(
    model: ModelOptions,
    version: u64,
    bytes: &[u8],
) -> Result<Weights, Box<dyn std::error::Error + Send + Sync>> {
    let parameters = Parameters::from_bytes(&Device::Cpu, bytes)?;
    Ok(Weights::new(model, &parameters, version)?)
}

/// Passes an order with a parcel for each of the others, as [`Ranks::next_order`] receives it.
fn pass(exchange: &mut dyn Exchange, order: Order, parcels: &[&[u8]]) -> Result<(), ExchangeError> {
    let pieces = parcels.iter().map(|parcel| parcel.len().div_ceil(PIECE_BYTES)).max().unwrap_or(0);
    let [order, key] = order.to_numbers();
    let heads: Vec<[u64; 4]> =
        parcels.iter().map(|parcel| [order, key, parcel.len() as u64, pieces as u64]).collect();
    exchange.round(&mut to_others(heads.iter().map(bytes_of)))?;
    for piece in 0..pieces {
        let cut = |parcel: &[u8]| [piece, piece + 1].map(|piece| (piece * PIECE_BYTES).min(parcel.len()));
        let sent = parcels.iter().map(|parcel| {
            let [begin, end] = cut(parcel);
            &parcel[begin..end]
        });
        exchange.round(&mut to_others(sent))?;
    }
    Ok(())
}

fn damaged(what: &str) -> RanksError {
    RanksError::Passed(std::io::Error::new(std::io::ErrorKind::InvalidData, what))
}
