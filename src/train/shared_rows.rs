//! [`SharedRows`]: rows of a pass's table that one rank computes and another one reads. The rows themselves go from the
//! first to the second; what flowed into them goes the way back.

use std::ops::Range;

use super::ranks::{Ranks, Share};
use super::shards::{runs, sum_in_tree};
use crate::device::exchange::Message;
use crate::model::Readers;

/// Which rows go between this rank and each of the others.
pub(super) struct SharedRows {
    /// The nodes whose rows each rank computes.
    computed: Vec<Range<usize>>,
    own: usize,
    others: Vec<Other>,
}

/// Rows between this rank and another one, as slots of distinct nodes.
struct Other {
    rank: usize,
    /// Computed here, read there.
    computed: Vec<usize>,
    /// Computed there, read here.
    read: Vec<usize>,
}

impl SharedRows {
    /// Of a pass in so many parts, of which each rank has one at least.
    pub fn of(ranks: &Ranks, parts: usize, readers: &Readers) -> Self {
        let (own, count) = (ranks.rank(), ranks.count());
        let parts = |rank: usize| Share { rank, ranks: count }.parts(parts);
        let computed: Vec<Range<usize>> = (0..count).map(|rank| readers.nodes_of(parts(rank))).collect();
        let read = |from: usize, by: usize| readers.read_by(computed[from].clone(), parts(by)).collect();
        let other = |rank| Other { rank, computed: read(own, rank), read: read(rank, own) };
        let others = (0..count).filter(|rank| *rank != own).map(other).collect();
        Self { computed, own, others }
    }

    /// The nodes whose rows each rank computes.
    pub fn computed(&self) -> &[Range<usize>] {
        &self.computed
    }

    /// Messages that pass those of these `rows` that are computed here to who reads them, and rows that are read here
    /// to `received`.
    pub fn computed_rows<'a>(
        &self,
        (rows, width): (&[f32], usize),
        room: (&'a mut Vec<f32>, &'a mut Vec<f32>),
    ) -> Vec<Message<'a>> {
        self.messages(|other| (&other.computed, &other.read), (&[rows], width), room)
    }

    /// Puts rows that were received so to their places among all `rows`.
    pub fn put_read(&self, received: &[f32], (rows, width): (&mut [f32], usize)) {
        let places = self.others.iter().flat_map(|other| &other.read);
        put(places.copied(), received, (rows, width));
    }

    /// Makes `sum` the sums of `flowed`, of what flowed from each part into the rows of all nodes, of the rows that are
    /// computed here.
    pub fn sum_computed(&self, (flowed, width): (&[&[f32]], usize), sum: &mut Vec<f32>) {
        let nodes = &self.computed[self.own];
        sum.resize(nodes.len() * width, 0.0);
        sum_at(nodes.start * width..nodes.end * width, flowed, sum);
    }

    /// Messages that pass the sums of `flowed`, of what flowed from each part into the rows of all nodes, of rows that
    /// are read here to who computed them, and what flowed elsewhere into rows that were computed here to `received`.
    pub fn read_rows<'a>(
        &self,
        flowed: (&[&[f32]], usize),
        room: (&'a mut Vec<f32>, &'a mut Vec<f32>),
    ) -> Vec<Message<'a>> {
        self.messages(|other| (&other.read, &other.computed), flowed, room)
    }

    /// Makes of `flowed` the rows that were received so, a region for each other rank: zeros where it does not read a
    /// row.
    pub fn put_computed(&self, received: &[f32], (flowed, width): (&mut Vec<f32>, usize)) {
        let region = &self.computed[self.own];
        flowed.clear();
        flowed.resize(self.others.len() * region.len() * width, 0.0);
        let places = self.others.iter().enumerate().flat_map(|(i, other)| {
            other.computed.iter().map(move |slot| i * region.len() + slot - region.start)
        });
        put(places, received, (flowed, width));
    }

    /// Messages with sums of rows over `parts`, of which `slots` has those that go to another rank and those that come
    /// from it.
    fn messages<'a>(
        &self,
        slots: impl Fn(&Other) -> (&[usize], &[usize]),
        (parts, width): (&[&[f32]], usize),
        (sent, received): (&'a mut Vec<f32>, &'a mut Vec<f32>),
    ) -> Vec<Message<'a>> {
        let lengths = self.others.iter().map(&slots).map(|(to, from)| (to.len() * width, from.len() * width));
        let (outward, inward): (Vec<usize>, Vec<usize>) = lengths.unzip();
        sent.resize(outward.iter().sum(), 0.0);
        received.resize(inward.iter().sum(), 0.0);
        let rows = sent.chunks_exact_mut(width.max(1));
        for (row, slot) in rows.zip(self.others.iter().flat_map(|other| slots(other).0)) {
            sum_at(slot * width..(slot + 1) * width, parts, row);
        }
        let buffers = runs(sent, &outward).into_iter().zip(runs(received, &inward));
        let message = |(other, (sent, received)): (&Other, (&'a mut [f32], &'a mut [f32]))| Message {
            rank: other.rank,
            sent: bytemuck::cast_slice(sent),
            received: bytemuck::cast_slice_mut(received),
        };
        self.others.iter().zip(buffers).map(message).collect()
    }
}

/// `sum` = the sum of these of the values of each of the `parts`.
fn sum_at(values: Range<usize>, parts: &[&[f32]], sum: &mut [f32]) {
    let parts: Vec<&[f32]> = parts.iter().map(|part| &part[values.clone()]).collect();
    sum_in_tree(sum, &parts);
}

/// Puts rows, one after another, to these places.
fn put(places: impl Iterator<Item = usize>, from: &[f32], (rows, width): (&mut [f32], usize)) {
    for (place, row) in places.zip(from.chunks_exact(width.max(1))) {
        rows[place * width..(place + 1) * width].copy_from_slice(row);
    }
}
