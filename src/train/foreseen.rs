//! [`Foreseen`]: which edge rows a batch reads whose step is still to come, and where they are in the host's memory.
//! Whoever prepares the batch finds that out, perhaps on another thread; whoever wants it waits ([`Coming`]), so that
//! nothing depends on which thread is faster.

use std::collections::VecDeque;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::device::cuda::RowsInPlace;
use crate::feature::FeatureStore;
use crate::feature::cache::RoundRows;
use crate::model::{DeviceRows, FeatureRows, Needs};

/// What a later batch reads.
pub(super) struct Foreseen {
    pub edges: Vec<u64>,
    /// Where the rows are in the host's memory, if the GPU reads them there, and of which version of the store.
    pub in_place: Option<(RowsInPlace, u64)>,
    /// For each row all ones if the GPU reads it in place. The others come with their round.
    pub here: Vec<u32>,
}

impl Foreseen {
    /// Of a batch whose edges are numbered.
    pub fn of(needs: &Needs, reads: Option<&DeviceRows>, store: &FeatureStore, batch: &FeatureRows) -> Self {
        let version = store.version();
        let rows = reads.and_then(|reads| reads.foresee(needs, store, batch.edges()));
        let in_place = |rows: &RowsInPlace, row| if rows.has(row) { u32::MAX } else { 0 };
        let here = rows.iter().flat_map(|rows| (0..rows.len()).map(|row| in_place(rows, row))).collect();
        Self { edges: batch.edges().to_vec(), in_place: rows.map(|rows| (rows, version)), here }
    }

    /// The rows and their version; none where the GPU reads nothing in place.
    pub fn round(&self) -> Option<(RoundRows<'_>, u64)> {
        let (rows, version) = self.in_place.as_ref()?;
        Some((RoundRows { ids: &self.edges, in_place: Some((rows, &self.here)), values: &[] }, *version))
    }

    /// Bytes of host memory.
    pub fn bytes(&self) -> usize {
        self.edges.capacity() * size_of::<u64>() + self.here.capacity() * size_of::<u32>()
    }
}

/// Batches to come, in their order. Whoever asks for the next one waits for the thread that finds out what it reads:
/// where steps are recorded ahead, while the GPU computes; else before it is asked for the step.
#[derive(Default)]
pub(super) struct Coming(VecDeque<Batch>);

enum Batch {
    Known(Foreseen),
    /// Somebody finds out.
    Sent(Receiver<Foreseen>),
}

impl Coming {
    /// Batches whose steps are still to come when one more is announced.
    const BEFORE: usize = 1;

    /// Announces a batch.
    pub fn push(&mut self, batch: Foreseen) {
        self.announce(Batch::Known(batch));
    }

    /// Announces a batch of which another thread sends what it reads. If that sends nothing, there is no such batch.
    pub fn push_sender(&mut self) -> Sender<Foreseen> {
        let (sender, batch) = bounded(1);
        self.announce(Batch::Sent(batch));
        sender
    }

    fn announce(&mut self, batch: Batch) {
        // Announced and never stepped.
        self.0.drain(..self.0.len().saturating_sub(Self::BEFORE));
        self.0.push_back(batch);
    }

    /// The next one. Waits for who finds out what it reads.
    pub fn front(&mut self) -> Option<&Foreseen> {
        while let Some(Batch::Sent(batch)) = self.0.front() {
            match batch.recv() {
                Ok(batch) => self.0[0] = Batch::Known(batch),
                Err(_) => drop(self.0.pop_front()),
            }
        }
        match self.0.front() {
            Some(Batch::Known(batch)) => Some(batch),
            _ => None,
        }
    }

    /// Takes the next one. Waits likewise.
    pub fn pop_front(&mut self) -> Option<Foreseen> {
        self.front()?;
        match self.0.pop_front() {
            Some(Batch::Known(batch)) => Some(batch),
            _ => None,
        }
    }

    /// Bytes of host memory of those that are known.
    pub fn bytes(&self) -> usize {
        let bytes = |batch: &Batch| if let Batch::Known(batch) = batch { batch.bytes() } else { 0 };
        self.0.iter().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreseen(edge: u64) -> Foreseen {
        Foreseen { edges: vec![edge], in_place: None, here: Vec::new() }
    }

    #[test]
    fn batches_come_in_their_order_whoever_announces_them() {
        let mut coming = Coming::default();
        assert!(coming.front().is_none() && coming.pop_front().is_none());
        let later = coming.push_sender();
        coming.push(foreseen(2));
        let sending = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            later.send(foreseen(1)).unwrap();
        });
        assert_eq!(coming.front().unwrap().edges, [1], "it is waited for");
        sending.join().unwrap();
        assert_eq!(coming.pop_front().unwrap().edges, [1]);
        assert_eq!(coming.pop_front().unwrap().edges, [2]);
        assert_eq!(coming.bytes(), 0);
    }

    #[test]
    fn a_batch_of_which_nothing_is_sent_is_none() {
        let mut coming = Coming::default();
        drop(coming.push_sender());
        coming.push(foreseen(3));
        assert_eq!(coming.front().unwrap().edges, [3]);
        // Two of which nobody took a step.
        (4..6).for_each(|edge| coming.push(foreseen(edge)));
        assert_eq!(coming.pop_front().unwrap().edges, [4]);
        assert!(coming.bytes() > 0);
    }
}
