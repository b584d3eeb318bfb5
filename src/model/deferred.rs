//! [`Deferred`]: memory rows whose message was applied already, and the gradient that each of them is owed.
//!
//! Most nodes of a batch are neighbors or negatives: their message waits from batch to batch until an event touches
//! them, and each batch that sees them would run the same message through the memory updater, forward and backward.
//! While training, a row is therefore kept from the first batch that sees it, later ones read it as it is, and what
//! flows back into it is added up here. The updater sees the sum when the message is consumed, or when the node is
//! seen again at least a number of batches (the *delay*) after the first gradient that is owed, or after no batch saw
//! it for [`UNSEEN_DELAYS`] delays:
//!
//! ```text
//! dL/dW  =  sum over batches b of  J_b^T g_b   ~   J^T (sum of g_b)          J: the updater's Jacobian by its weights
//! ```
//! The updater's backward pass is linear in the upstream gradient, so with equal weights both sides are equal; over a
//! few batches the weights move little. Whether that is little enough depends on the stream: test average precision is
//! as high as without a delay on Wikipedia and UCI, and lower on a dense stream of repeated pairs, however short the
//! delay. So there is none by default. Batches are those that are trained on. A row shows features of its message's
//! edge for as long as it is kept, also where retention has passed the edge meanwhile.
//!
//! A row goes with its message, with its node, with new weights, after a step that was not finite, and when no batch
//! saw it for [`UNSEEN_BATCHES`]. What it was owed goes too, but where a training step consumes the message: so a
//! learner that lags, whose state-only updates consume messages, learns a little less from the batches between. At
//! most [`ROWS_MAX`] are kept; nodes beyond are computed in every batch. All of it is part of the trainer's saved
//! state.
//!
//! Knows nothing of tapes and updaters.

use std::io::{Error, ErrorKind, Read, Result, Write};

use hashbrown::HashMap;

use super::tables;
use crate::event::NodeId;

/// A row that no batch saw for so many delays is computed anew by the next that does.
const UNSEEN_DELAYS: u64 = 4;

/// A row that no batch saw for so many batches is let go.
const UNSEEN_BATCHES: u64 = 32;

/// Rows kept at most.
const ROWS_MAX: usize = 1 << 14;

/// Stands for "nothing is owed".
const NEVER: u64 = u64::MAX;

/// Kept rows of equal width.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deferred {
    width: usize,
    /// Batches so far.
    batch: u64,
    /// Places in `entries`.
    places: HashMap<NodeId, u32>,
    entries: Vec<Entry>,
    /// Per entry its row, then the gradient that it is owed.
    values: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    node: NodeId,
    /// The last batch that saw the row.
    seen: u64,
    /// The first batch whose gradient is owed; [`NEVER`] if nothing is.
    owed_since: u64,
}

impl Deferred {
    /// No rows yet, of `width` values each.
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self { width, ..Self::default() }
    }

    /// The kept row of `node`.
    #[must_use]
    pub fn row(&self, node: NodeId) -> Option<&[f32]> {
        Some(&self.values[2 * self.width * self.place(node)?..][..self.width])
    }

    /// The gradient that the row of `node` is owed, if any is.
    #[must_use]
    pub fn owed(&self, node: NodeId) -> Option<&[f32]> {
        let place = self.place(node).filter(|&place| self.entries[place].owed_since != NEVER)?;
        Some(&self.values[(2 * place + 1) * self.width..][..self.width])
    }

    /// Whether the batch at hand has to apply the message of `node` anew: its row is not kept, the first gradient owed
    /// is `delay` batches old, or no batch saw it for long.
    #[must_use]
    pub fn is_due(&self, node: NodeId, delay: u64) -> bool {
        self.place(node).is_none_or(|place| {
            let Entry { seen, owed_since, .. } = self.entries[place];
            let age = |since: u64| self.batch.saturating_sub(since);
            (owed_since != NEVER && age(owed_since) >= delay)
                || age(seen) >= delay.saturating_mul(UNSEEN_DELAYS)
        })
    }

    /// Keeps the row of `node` that the batch at hand computed; nothing is owed to it. A row that is not finite is not
    /// kept.
    pub fn keep(&mut self, node: NodeId, row: &[f32]) {
        if !row.iter().all(|value| value.is_finite()) {
            return self.forget(node);
        }
        let place = match self.place(node) {
            Some(place) => place,
            None if self.entries.len() >= ROWS_MAX => return,
            None => {
                // Fewer than `ROWS_MAX`.
                self.places.insert(node, self.entries.len() as u32);
                self.entries.push(Entry { node, seen: self.batch, owed_since: NEVER });
                self.values.resize(self.values.len() + 2 * self.width, 0.0);
                self.entries.len() - 1
            }
        };
        (self.entries[place].seen, self.entries[place].owed_since) = (self.batch, NEVER);
        self.values[2 * place * self.width..][..self.width].copy_from_slice(row);
    }

    /// Adds what the batch at hand let flow into the kept row of `node`.
    pub fn owe(&mut self, node: NodeId, gradient: &[f32]) {
        let Some(place) = self.place(node) else { return };
        let entry = &mut self.entries[place];
        let owed = &mut self.values[(2 * place + 1) * self.width..][..self.width];
        entry.seen = self.batch;
        if entry.owed_since == NEVER {
            entry.owed_since = self.batch;
            owed.copy_from_slice(gradient);
        } else {
            owed.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
    }

    /// Lets the row of `node` go, with what it is owed.
    pub fn forget(&mut self, node: NodeId) {
        let Some(place) = self.places.remove(&node).map(|place| place as usize) else { return };
        self.entries.swap_remove(place);
        let (last, size) = (self.entries.len(), 2 * self.width);
        if place < last {
            self.values.copy_within(last * size..(last + 1) * size, place * size);
            self.places.insert(self.entries[place].node, place as u32);
        }
        self.values.truncate(last * size);
    }

    /// Ends the batch at hand. Now and then, rows are let go that no batch saw lately.
    pub fn advance(&mut self) {
        self.batch += 1;
        if !self.batch.is_multiple_of(UNSEEN_BATCHES) {
            return;
        }
        let is_old = |entry: &&Entry| self.batch.saturating_sub(entry.seen) > UNSEEN_BATCHES;
        let old: Vec<NodeId> = self.entries.iter().filter(is_old).map(|entry| entry.node).collect();
        old.into_iter().for_each(|node| self.forget(node));
    }

    /// Lets all rows go.
    pub fn clear(&mut self) {
        *self = Self::new(self.width);
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<f32>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.places.allocation_size()
    }

    fn place(&self, node: NodeId) -> Option<usize> {
        self.places.get(&node).map(|&place| place as usize)
    }

    /// Writes everything; [`Self::read`] restores it bit for bit.
    pub(super) fn write(&self, out: &mut impl Write) -> Result<()> {
        let nodes: Vec<u32> = self.entries.iter().map(|entry| entry.node.0).collect();
        let batches = self.entries.iter().flat_map(|entry| [entry.seen, entry.owed_since]);
        tables::write_u64(out, self.batch)?;
        tables::write_table(out, &nodes)?;
        tables::write_table(out, &batches.collect::<Vec<u64>>())?;
        tables::write_table(out, &self.values)
    }

    /// Reads rows of `width` values.
    pub(super) fn read(width: usize, input: &mut impl Read) -> Result<Self> {
        let batch = tables::read_u64(input)?;
        let nodes: Vec<u32> = tables::read_table(input)?;
        let batches: Vec<u64> = tables::read_table(input)?;
        let values: Vec<f32> = tables::read_table(input)?;
        let places: HashMap<NodeId, u32> = nodes.iter().map(|&node| NodeId(node)).zip(0..).collect();
        let count = nodes.len();
        let fits = batches.len() == 2 * count && values.len() == 2 * count * width && places.len() == count;
        let finite = values.iter().all(|value| value.is_finite());
        if !fits || !finite || count > ROWS_MAX {
            let what =
                format!("{count} kept rows with {} values do not fit a width of {width}", values.len());
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let entry = |(node, batches): (u32, &[u64])| Entry {
            node: NodeId(node),
            seen: batches[0],
            owed_since: batches[1],
        };
        let entries = nodes.into_iter().zip(batches.chunks_exact(2)).map(entry).collect();
        Ok(Self { width, batch, places, entries, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(7);
    const B: NodeId = NodeId(9);

    /// Lets batches pass, without those in which rows are swept.
    fn pass(rows: &mut Deferred, batches: u64) {
        (0..batches).for_each(|_| rows.advance());
    }

    #[test]
    fn gradients_add_up_until_the_row_is_due() {
        let mut rows = Deferred::new(2);
        assert!(rows.is_due(A, 5), "it is not kept");
        rows.keep(A, &[1.0, 2.0]);
        pass(&mut rows, 19);
        assert!(!rows.is_due(A, 5), "nothing is owed");
        pass(&mut rows, 1);
        assert!(rows.is_due(A, 5), "no batch saw it for long");
        rows.owe(A, &[0.5, 0.0]);
        pass(&mut rows, 2);
        rows.owe(A, &[0.25, 1.0]);
        assert_eq!((rows.row(A), rows.owed(A)), (Some(&[1.0, 2.0][..]), Some(&[0.75, 1.0][..])));
        pass(&mut rows, 2);
        assert!(!rows.is_due(A, 5));
        pass(&mut rows, 1);
        assert!(rows.is_due(A, 5));
        rows.keep(A, &[3.0, 4.0]);
        assert_eq!((rows.row(A), rows.owed(A)), (Some(&[3.0, 4.0][..]), None));
        rows.owe(A, &[0.125, 0.0]);
        assert_eq!(rows.owed(A), Some(&[0.125, 0.0][..]), "what was paid is not owed again");
    }

    #[test]
    fn rows_go_with_their_node_and_when_no_batch_sees_them() {
        let mut rows = Deferred::new(1);
        for node in 0..40 {
            rows.keep(NodeId(node), &[node as f32]);
            rows.advance();
        }
        rows.forget(NodeId(5));
        rows.keep(NodeId(6), &[f32::NAN]);
        assert_eq!((rows.row(NodeId(5)), rows.row(NodeId(6))), (None, None));
        assert_eq!(rows.row(NodeId(39)), Some(&[39.0][..]), "another row took the place");
        rows.owe(NodeId(17), &[1.0]);
        pass(&mut rows, 23);
        assert_eq!(rows.row(NodeId(18)), Some(&[18.0][..]), "not its turn");
        rows.advance();
        assert_eq!((rows.row(NodeId(18)), rows.owed(NodeId(17))), (None, Some(&[1.0][..])));
        assert_eq!((rows.row(NodeId(31)), rows.row(NodeId(32))), (None, Some(&[32.0][..])));
        assert_eq!(rows.entries.len(), 40 - 32 + 1);
        rows.clear();
        assert_eq!(rows, Deferred::new(1));
    }

    #[test]
    fn rows_are_bounded_and_survive_bytes() {
        let mut rows = Deferred::new(1);
        for node in 0..ROWS_MAX as u32 + 10 {
            rows.keep(NodeId(node), &[1.0]);
        }
        assert_eq!((rows.entries.len(), rows.row(NodeId(ROWS_MAX as u32))), (ROWS_MAX, None));
        let mut rows = Deferred::new(2);
        rows.keep(A, &[1.0, 2.0]);
        rows.advance();
        rows.keep(B, &[3.0, 4.0]);
        rows.owe(B, &[0.5, 0.5]);
        let mut bytes = Vec::new();
        rows.write(&mut bytes).unwrap();
        assert_eq!(Deferred::read(2, &mut &bytes[..]).unwrap(), rows);
        assert!(Deferred::read(3, &mut &bytes[..]).is_err());
        for end in 0..bytes.len() {
            assert!(Deferred::read(2, &mut &bytes[..end]).is_err(), "cut at {end}");
        }
        let last = bytes.len() - 1;
        (bytes[last], bytes[last - 1]) = (0x7f, 0xc0);
        assert!(Deferred::read(2, &mut &bytes[..]).is_err(), "not a number");
    }
}
