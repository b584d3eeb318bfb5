//! Gradients of all ranks are added up: rounds 3 and 4. A rank adds up a slice of all values, which every other one
//! sends it, and sends each of them the sums. Terms and sums are rounded, as those of shards are, to the numbers that
//! are sent, so nothing is lost on the way.

use half::bf16;

use super::super::shards::cut;
use super::{Ranks, gathered};
use crate::device::exchange::{ExchangeError, Message};
use crate::device::matmul::Precision;
use crate::nn::{Gradients, Number, add_rounded, pack, unpack};

/// Values that are added up at a time: those of eight ranks stay in the first cache.
const PIECE: usize = 512;

impl Ranks {
    /// Adds up the gradients of all ranks.
    pub fn add_up(&mut self, gradients: &mut Gradients, precision: Precision) -> Result<(), ExchangeError> {
        match precision {
            Precision::F32 => self.add_up_in::<f32>(gradients),
            Precision::Bf16 => self.add_up_in::<bf16>(gradients),
        }
    }

    fn add_up_in<N: Number>(&mut self, gradients: &mut Gradients) -> Result<(), ExchangeError> {
        let (own, ranks, count) = (self.rank(), self.count(), gradients.count());
        let own_written = gradients.begin_sum();
        let mut written = own_written.repeat(ranks);
        let lengths: Vec<usize> = (0..ranks).map(|rank| cut(rank, ranks, count).len()).collect();
        let mut slices = gradients.runs_mut(&lengths);
        let Self { exchange, gradients_sent, gradients_received, .. } = self;

        let (length, others) = (lengths[own], count - lengths[own]);
        let to_others = room::<N>(gradients_sent, others.max(length));
        let mut begin = 0;
        for slice in slices.iter().enumerate().filter(|(rank, _)| *rank != own).flat_map(|(_, run)| run) {
            pack(&mut to_others[begin..][..slice.len()], slice);
            begin += slice.len();
        }
        let from_others = room::<N>(gradients_received, others.max(length * (ranks - 1)));
        let mut messages = gathered(own, &mut written, &vec![own_written.len(); ranks]);
        let (mut terms, mut left) = (&to_others[..], &mut from_others[..]);
        for rank in (0..ranks).filter(|rank| *rank != own) {
            let (term, part);
            (term, terms) = terms.split_at(lengths[rank]);
            (part, left) = left.split_at_mut(length);
            messages.push(message(rank, term, part));
        }
        exchange.round(&mut messages)?;

        let (mut begin, mut values) = (0, vec![0.0; ranks * PIECE]);
        for slice in &mut slices[own] {
            let (count, sums) = (slice.len(), &mut to_others[begin..]);
            add_others((own, slice), (from_others, length, begin), &mut sums[..count], &mut values);
            begin += count;
        }

        let (summed, mut left) = (&to_others[..length], &mut from_others[..]);
        let mut messages = Vec::with_capacity(ranks - 1);
        for rank in (0..ranks).filter(|rank| *rank != own) {
            let part;
            (part, left) = left.split_at_mut(lengths[rank]);
            messages.push(message(rank, summed, part));
        }
        exchange.round(&mut messages)?;
        let mut begin = 0;
        for slice in slices.into_iter().enumerate().filter(|(rank, _)| *rank != own).flat_map(|(_, run)| run)
        {
            unpack(slice, &from_others[begin..][..slice.len()]);
            begin += slice.len();
        }
        let is_written =
            |i: usize| written[i..].iter().step_by(own_written.len()).any(|written| *written > 0.0);
        gradients.end_sum((0..own_written.len()).map(is_written));
        Ok(())
    }
}

/// Makes `slice`, of what the `own` rank has, and `sums` the sum over all ranks, in a binary tree. `others` has
/// `length` values of each other rank, and for `slice` those from `begin` on. `values` has a piece for each rank.
fn add_others<N: Number>(
    (own, slice): (usize, &mut [f32]),
    (others, length, begin): (&[N], usize, usize),
    sums: &mut [N],
    values: &mut [f32],
) {
    let ranks = values.len() / PIECE;
    let pieces = slice.chunks_mut(PIECE).zip(sums.chunks_mut(PIECE));
    for (begin, (piece, sums)) in (begin..).step_by(PIECE).zip(pieces) {
        let count = piece.len();
        for (rank, part) in values.chunks_exact_mut(PIECE).enumerate() {
            if rank == own {
                part[..count].copy_from_slice(piece);
            } else {
                let other = rank - usize::from(rank > own);
                unpack(&mut part[..count], &others[other * length + begin..][..count]);
            }
        }
        let mut step = 1;
        while step < ranks {
            for first in (0..ranks).step_by(2 * step) {
                let (to, from) = values.split_at_mut((first + step) * PIECE);
                add_rounded::<N>(&mut to[first * PIECE..][..count], &from[..count]);
            }
            step *= 2;
        }
        piece.copy_from_slice(&values[..count]);
        pack(sums, piece);
    }
}

/// Room for `count` numbers in a buffer that is kept.
fn room<N: Number>(kept: &mut Vec<f32>, count: usize) -> &mut [N] {
    kept.resize((count * size_of::<N>()).div_ceil(size_of::<f32>()), 0.0);
    &mut bytemuck::cast_slice_mut(kept)[..count]
}

fn message<'a, N: Number>(rank: usize, sent: &'a [N], received: &'a mut [N]) -> Message<'a> {
    Message { rank, sent: bytemuck::cast_slice(sent), received: bytemuck::cast_slice_mut(received) }
}
