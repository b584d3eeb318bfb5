//! [`Exchange`]: how processes that compute one thing together, its ranks, pass bytes to one another. One verb: every
//! rank enters a round with messages for the others and leaves it with theirs. [`mpi`] does it between processes.
//!
//! Ranks are fail-stop: a rank that is lost ends the round with an error at all others, within a deadline, and what
//! they computed together begins again. Knows nothing of what they mean.

pub mod mpi;

use std::time::Duration;

use bytemuck::Pod;
use thiserror::Error;

/// What a rank passes to another one in a round, and what it receives from it. Each may be empty; their lengths are
/// those that the other expects. Messages between the same two ranks pair up in their order.
#[derive(Debug)]
pub struct Message<'a> {
    /// The other.
    pub rank: usize,
    /// Goes to it.
    pub sent: &'a [u8],
    /// Comes from it.
    pub received: &'a mut [u8],
}

impl<'a> Message<'a> {
    /// Plain values to a rank, and room for those from it.
    #[must_use]
    pub fn of<T: Pod>(rank: usize, sent: &'a [T], received: &'a mut [T]) -> Self {
        Self { rank, sent: bytemuck::cast_slice(sent), received: bytemuck::cast_slice_mut(received) }
    }
}

/// What a rank has passed to the others so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Rounds.
    pub rounds: u64,
    /// Bytes that it sent, those for several ranks once for each.
    pub bytes: u64,
    /// Seconds in rounds, waiting for others included.
    pub seconds: f64,
    /// Seconds that its thread computed in them.
    pub cpu_seconds: f64,
}

/// A round that failed. The ranks cannot go on together.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// What MPI reports.
    #[error("{call} of MPI failed with code {code}; the ranks end, and may be started again")]
    Mpi {
        /// The function.
        call: &'static str,
        /// Its error class or code.
        code: i32,
    },
    /// A rank has not sent what it should.
    #[error(
        "rank {rank} has waited {} s for the others in round {round}: one is lost or stuck; the ranks end, and may be \
         started again", waited.as_secs()
    )]
    Lost {
        /// Who waited.
        rank: usize,
        /// Its round.
        round: u64,
        /// How long.
        waited: Duration,
    },
    /// A rank has sent another number of bytes than was expected: it computes something else.
    #[error(
        "rank {rank} has sent {came} bytes in place of {expected}: it has other settings or data; the ranks end"
    )]
    Length {
        /// Who sent.
        rank: usize,
        /// What came.
        came: i64,
        /// What should have come.
        expected: usize,
    },
    /// A message is longer than MPI counts, or than there is memory for.
    #[error("a message of {bytes} bytes is longer than MPI or this machine's memory takes")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// The other ranks, as one sees them.
pub trait Exchange: Send {
    /// This one's number, from 0.
    fn rank(&self) -> usize;

    /// How many there are, this one included.
    fn ranks(&self) -> usize;

    /// Passes all messages. Every rank enters every round, even one without messages of its own. [`mpi`] returns no
    /// error of a round that has begun: messages may still be under way to the buffers, so it ends the process, with
    /// the reason, and all ranks with it.
    ///
    /// # Errors
    /// A rank is lost or computes something else, or the engine failed.
    fn round(&mut self, messages: &mut [Message<'_>]) -> Result<(), ExchangeError>;

    /// The same, however long the others take to enter it: of a rank that has nothing to do until then. Calls `alive`
    /// from time to time while it waits.
    ///
    /// # Errors
    /// As [`round`](Self::round).
    fn patient_round(&mut self, messages: &mut [Message<'_>], alive: &dyn Fn()) -> Result<(), ExchangeError> {
        alive();
        self.round(messages)
    }

    /// What it has passed so far.
    fn traffic(&self) -> Traffic;

    /// Parts from the others when all are done; every rank calls it last, or ends without it where it has failed, which
    /// ends the others.
    fn leave(&mut self) {}
}

/// Passes `sent` to all others, and theirs, which are as long, to their places in `room`, by rank; the place of this
/// rank stays as it is.
///
/// # Errors
/// As a round.
pub fn exchange_alike(
    exchange: &mut dyn Exchange,
    sent: &[u8],
    room: &mut [u8],
) -> Result<(), ExchangeError> {
    let mut messages = alike(exchange.rank(), sent, room);
    exchange.round(&mut messages)
}

/// The same in a patient round.
///
/// # Errors
/// As a round.
pub fn exchange_alike_patiently(
    exchange: &mut dyn Exchange,
    sent: &[u8],
    room: &mut [u8],
    alive: &dyn Fn(),
) -> Result<(), ExchangeError> {
    let mut messages = alike(exchange.rank(), sent, room);
    exchange.patient_round(&mut messages, alive)
}

fn alike<'a>(own: usize, sent: &'a [u8], room: &'a mut [u8]) -> Vec<Message<'a>> {
    let places = room.chunks_exact_mut(sent.len().max(1)).enumerate();
    let others = places.filter(|(rank, _)| *rank != own);
    others.map(|(rank, received)| Message { rank, sent, received }).collect()
}

/// Messages of the first rank to all others in their order, which send it nothing.
pub fn to_others<'a>(sent: impl IntoIterator<Item = &'a [u8]>) -> Vec<Message<'a>> {
    sent.into_iter().zip(1..).map(|(sent, rank)| Message { rank, sent, received: &mut [] }).collect()
}

/// Bytes of a message at most, where what is passed may be longer: MPI counts those of one in 31 bits.
pub const PIECE_BYTES: usize = 1 << 30;

/// Gives all ranks the `bytes` of rank 0, whatever they have.
///
/// # Errors
/// As a round, or there is no memory for so much.
pub fn broadcast(exchange: &mut dyn Exchange, bytes: &mut Vec<u8>) -> Result<(), ExchangeError> {
    let is_first = exchange.rank() == 0;
    let mut length = (bytes.len() as u64).to_le_bytes();
    first_to_others(exchange, is_first, &mut length)?;
    if !is_first {
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        bytes.clear();
        bytes.try_reserve(length).map_err(|_| ExchangeError::TooLong { bytes: length })?;
        bytes.resize(length, 0);
    }
    bytes.chunks_mut(PIECE_BYTES).try_for_each(|piece| first_to_others(exchange, is_first, piece))
}

fn first_to_others(
    exchange: &mut dyn Exchange,
    is_first: bool,
    bytes: &mut [u8],
) -> Result<(), ExchangeError> {
    if !is_first {
        return exchange.round(&mut [Message { rank: 0, sent: &[], received: bytes }]);
    }
    let others = exchange.ranks() - 1;
    exchange.round(&mut to_others(std::iter::repeat_n(&*bytes, others)))
}
