//! Gradients of all ranks are added up: rounds 3 and 4. A rank adds up a slice of all values, which every other one
//! sends it, and sends each of them the sums. Terms and sums are rounded, as those of shards are, to the numbers that
//! are sent, so nothing is lost on the way.

use std::cmp::Ordering;

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
        let Self { exchange, sent, received, .. } = self;

        let (length, others) = (lengths[own], count - lengths[own]);
        let to_others = room::<N>(sent, others.max(length));
        let mut begin = 0;
        for slice in slices.iter().enumerate().filter(|(rank, _)| *rank != own).flat_map(|(_, run)| run) {
            pack(&mut to_others[begin..][..slice.len()], slice);
            begin += slice.len();
        }
        let from_others = room::<N>(received, others.max(length * (ranks - 1)));
        let mut messages = gathered(own, &mut written, &vec![own_written.len(); ranks]);
        let (mut terms, mut left) = (&to_others[..], &mut from_others[..]);
        for rank in (0..ranks).filter(|rank| *rank != own) {
            let (term, part);
            (term, terms) = terms.split_at(lengths[rank]);
            (part, left) = left.split_at_mut(length);
            messages.push(message(rank, term, part));
        }
        exchange.round(&mut messages)?;

        let mut begin = 0;
        for slice in &mut slices[own] {
            let values = begin..begin + slice.len();
            let others: Vec<&[N]> =
                (0..ranks - 1).map(|other| &from_others[other * length..][values.clone()]).collect();
            add_others((own, slice), &others, &mut to_others[values.clone()]);
            begin = values.end;
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

/// Makes `slice`, of what the `own` rank has, and `sums` the sum over all ranks, in a binary tree. `others` have the
/// same values of the other ranks.
fn add_others<N: Number>((own, slice): (usize, &mut [f32]), others: &[&[N]], sums: &mut [N]) {
    let ranks = others.len() + 1;
    let mut values = vec![0.0; ranks * PIECE];
    for (begin, (piece, sums)) in
        (0..).step_by(PIECE).zip(slice.chunks_mut(PIECE).zip(sums.chunks_mut(PIECE)))
    {
        let mut parts: Vec<&mut [f32]> =
            values.chunks_exact_mut(PIECE).map(|part| &mut part[..piece.len()]).collect();
        for (rank, part) in parts.iter_mut().enumerate() {
            match rank.cmp(&own) {
                Ordering::Equal => part.copy_from_slice(piece),
                Ordering::Less => unpack(part, &others[rank][begin..][..piece.len()]),
                Ordering::Greater => unpack(part, &others[rank - 1][begin..][..piece.len()]),
            }
        }
        let mut step = 1;
        while step < ranks {
            for pair in parts.chunks_mut(2 * step) {
                let (to, from) = pair.split_at_mut(step);
                add_rounded::<N>(to[0], from[0]);
            }
            step *= 2;
        }
        piece.copy_from_slice(parts[0]);
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
