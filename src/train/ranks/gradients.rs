//! Gradients of all ranks are added up: rounds 3 and 4. A rank adds up a slice of all values, which every other one
//! sends it, and sends each of them the sums. Terms and sums are rounded, as those of shards are, to the numbers that
//! are sent, so nothing is lost on the way.

use super::super::shards::{cut, runs};
use super::{Ranks, gathered};
use crate::device::exchange::{ExchangeError, Message};
use crate::nn::{Gradients, Number, add_rounded, pack, unpack};

/// Values that are added up at a time: those of eight ranks stay in the first cache.
const PIECE: usize = 512;

impl Ranks {
    /// Adds up the gradients of all ranks.
    pub fn add_up<N: Number>(&mut self, gradients: &mut Gradients) -> Result<(), ExchangeError> {
        let (own, ranks, count) = (self.rank(), self.count(), gradients.count());
        let own_written = gradients.begin_sum();
        let mut written = own_written.repeat(ranks);
        let mut lengths: Vec<usize> = (0..ranks).map(|rank| cut(rank, ranks, count).len()).collect();
        let mut slices = gradients.runs_mut(&lengths);
        // What is this rank's to add up stands apart from what is the others'.
        let (length, own_slices) = (lengths.remove(own), slices.remove(own));
        let others = || (0..ranks).filter(|rank| *rank != own);
        let Self { exchange, gradients_sent, gradients_received, .. } = self;
        let sent = room::<N>(gradients_sent, length.max(count - length));
        let received = room::<N>(gradients_received, (length * (ranks - 1)).max(count - length));

        let mut begin = 0;
        for slice in slices.iter().flatten() {
            pack(&mut sent[begin..][..slice.len()], slice);
            begin += slice.len();
        }
        let mut messages = gathered(own, &mut written, &vec![own_written.len(); ranks]);
        let terms = runs(sent, &lengths).into_iter().zip(runs(received, &vec![length; ranks - 1]));
        messages
            .extend(others().zip(terms).map(|(rank, (sent, received))| Message::of(rank, sent, received)));
        exchange.round(&mut messages)?;

        let (mut begin, mut values) = (0, vec![[0.0; PIECE]; ranks]);
        for slice in own_slices {
            let (from, end) = (begin, begin + slice.len());
            add_others((own, slice), (received, length, from), &mut sent[from..end], &mut values);
            begin = end;
        }
        let sums = &sent[..length];
        let mut messages: Vec<_> = others()
            .zip(runs(received, &lengths))
            .map(|(rank, received)| Message::of(rank, sums, received))
            .collect();
        exchange.round(&mut messages)?;
        let mut begin = 0;
        for slice in slices.into_iter().flatten() {
            unpack(slice, &received[begin..][..slice.len()]);
            begin += slice.len();
        }
        let is_written =
            |i: usize| written[i..].iter().step_by(own_written.len()).any(|written| *written > 0.0);
        gradients.end_sum((0..own_written.len()).map(is_written));
        Ok(())
    }
}

/// Makes `slice`, of what the `own` rank has, and `sums` the sum over all ranks, in a binary tree. `others` has
/// `length` values of each other rank, and for `slice` those from `begin` on. `values` has room for each rank.
fn add_others<N: Number>(
    (own, slice): (usize, &mut [f32]),
    (others, length, begin): (&[N], usize, usize),
    sums: &mut [N],
    values: &mut [[f32; PIECE]],
) {
    let pieces = slice.chunks_mut(PIECE).zip(sums.chunks_mut(PIECE));
    for (begin, (piece, sums)) in (begin..).step_by(PIECE).zip(pieces) {
        let count = piece.len();
        for (rank, part) in values.iter_mut().enumerate() {
            if rank == own {
                part[..count].copy_from_slice(piece);
            } else {
                let other = rank - usize::from(rank > own);
                unpack(&mut part[..count], &others[other * length + begin..][..count]);
            }
        }
        let mut step = 1;
        while step < values.len() {
            for pair in values.chunks_mut(2 * step) {
                let (to, from) = pair.split_at_mut(step);
                add_rounded::<N>(&mut to[0][..count], &from[0][..count]);
            }
            step *= 2;
        }
        piece.copy_from_slice(&values[0][..count]);
        pack(sums, piece);
    }
}

/// Room for `count` numbers in a buffer that is kept.
fn room<N: Number>(kept: &mut Vec<f32>, count: usize) -> &mut [N] {
    kept.resize((count * size_of::<N>()).div_ceil(size_of::<f32>()), 0.0);
    &mut bytemuck::cast_slice_mut(kept)[..count]
}
