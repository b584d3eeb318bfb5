//! [`SharedRows`]: rows of a pass's table that one rank computes and another one reads. The rows themselves go from the
//! first to the second; what flowed into them goes the way back.

use std::ops::Range;

use super::ranks::Share;
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
    /// Of a pass in so many parts, of which each of so many ranks has one at least.
    pub fn of((own, count): (usize, usize), parts: usize, readers: &Readers) -> Self {
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

    /// Messages of round 1: they send those of `rows` that are computed here to the ranks that read them, and receive
    /// the rows that are read here.
    pub fn computed_rows<'a>(
        &self,
        (rows, width): (&[f32], usize),
        room: (&'a mut Vec<f32>, &'a mut Vec<f32>),
    ) -> Vec<Message<'a>> {
        self.messages(|other| (&other.computed, &other.read), (&[rows], width), room)
    }

    /// Puts rows that were received in round 1 to their places among all `rows`.
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

    /// Messages of round 2: they send what flowed into rows of other ranks, the sum over the parts of `flowed`, which
    /// have a row for each node; and receive what flowed there into rows that were computed here.
    pub fn read_rows<'a>(
        &self,
        flowed: (&[&[f32]], usize),
        room: (&'a mut Vec<f32>, &'a mut Vec<f32>),
    ) -> Vec<Message<'a>> {
        self.messages(|other| (&other.read, &other.computed), flowed, room)
    }

    /// Makes of `flowed` what was received in round 2, a region for each other rank: zeros where it does not read a
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
        self.others
            .iter()
            .zip(buffers)
            .map(|(other, (sent, received))| Message::of(other.rank, sent, received))
            .collect()
    }
}

/// `sum` = the sum of these of the values of each of the `parts`.
fn sum_at(values: Range<usize>, parts: &[&[f32]], sum: &mut [f32]) {
    if let [one] = parts {
        return sum.copy_from_slice(&one[values]);
    }
    let parts: Vec<&[f32]> = parts.iter().map(|part| &part[values.clone()]).collect();
    sum_in_tree(sum, &parts);
}

/// Puts rows, one after another, to these places.
fn put(places: impl Iterator<Item = usize>, from: &[f32], (rows, width): (&mut [f32], usize)) {
    for (place, row) in places.zip(from.chunks_exact(width.max(1))) {
        rows[place * width..(place + 1) * width].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_another_rank_reads_are_sent() {
        // Two parts for each of two ranks. The second rank reads node 2 of the first, which reads node 5 of the second.
        let readers = Readers::of(&[0b0001, 0b0010, 0b0110, 0b0100, 0b1000, 0b1010], &[2, 3, 4, 6]);
        let [first, second] = [0, 1].map(|rank| SharedRows::of((rank, 2), 4, &readers));
        assert_eq!(first.computed(), [0..3, 3..6]);
        let rows: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let messages = first.computed_rows((&rows, 2), (&mut sent, &mut received));
        assert_eq!((messages.len(), messages[0].rank, messages[0].received.len()), (1, 1, 8));
        assert_eq!(bytemuck::cast_slice::<u8, f32>(messages[0].sent), [4.0, 5.0]);
        let mut table = vec![0.0; 12];
        first.put_read(&[10.0, 11.0], (&mut table, 2));
        assert_eq!(table[10..], [10.0, 11.0]);
        assert!(table[..10].iter().all(|value| *value == 0.0));
        // What flowed from both parts of the first rank into node 5 goes to the second, that into node 2 stays.
        let flowed = [&rows[..], &rows[..]];
        let messages = first.read_rows((&flowed, 2), (&mut sent, &mut received));
        assert_eq!(bytemuck::cast_slice::<u8, f32>(messages[0].sent), [20.0, 22.0]);
        let mut others = Vec::new();
        second.put_computed(&[20.0, 22.0], (&mut others, 2));
        assert_eq!(others, [0.0, 0.0, 0.0, 0.0, 20.0, 22.0]);
        let mut sum = Vec::new();
        first.sum_computed((&flowed, 2), &mut sum);
        assert_eq!(sum, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }
}
