//! [`FeatureRows`]: the feature rows that one pass of the model reads, found and copied before it begins.
//!
//! Which rows a pass reads follows from the sample and from the mailbox, never from the weights: the edge in
//! each slot, the edge of each message that waits for one of the distinct nodes, the features of those nodes.
//! They are numbered first and fetched at once, every distinct edge one time, so that any store can provide them, and a
//! failure to read them comes before anything is computed.
//!
//! A message may wait for longer than its edge is kept. Whether the row of such an edge is there, was released or was
//! cleared by a deletion is chance, so by rule it counts as zeros: the time of the message alone decides.
//!
//! Does not know where rows are stored: the caller fetches.

mod kept;
mod messages;
mod passed;

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use thiserror::Error;

pub use self::kept::{KeptRows, SentRows};
pub use self::passed::RowsOfRank;
use super::device_rows::Located;
use super::limit::limit;
use super::{EMPTY_SLOT, Needs, Neighborhood, edge_types};
use crate::device::Device;
use crate::device::cuda::RowsInPlace;
use crate::event::{EdgeId, EventTime, NodeId};
use crate::feature::FeatureError;
use crate::nn::Tensor;
use crate::sampler::{MessageFlowGraph, SampleError};

/// The rows of a pass could not be read. The pass has not begun.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GatherError {
    /// Feature rows.
    #[error(transparent)]
    Rows(#[from] FeatureError),
    /// Edges.
    #[error(transparent)]
    Edges(#[from] SampleError),
}

/// Edge rows of a pass, every distinct edge once, and the rows of its distinct nodes. Kept between passes; grows
/// to what they need.
#[derive(Debug, Default)]
pub struct FeatureRows {
    /// The distinct edges, by number; [`MessageFlowGraph::NO_EDGE`] stands for those that count as zeros.
    edges: Vec<u64>,
    numbers: HashMap<u64, u32>,
    /// Edges below this one have no rows.
    first: EdgeId,
    /// Number of the edge in each slot, layer by layer, or of each edge that a GPU listed.
    slots: Vec<u32>,
    /// Number of the edge of each node's pending message.
    messages: Vec<u32>,
    /// Those edges themselves; [`MessageFlowGraph::NO_EDGE`] where nothing waits.
    message_edges: Vec<EdgeId>,
    /// Times of their events.
    message_times: Vec<EventTime>,
    /// Number of the edge of each message that the batch itself will leave, or of which it will leave means.
    next_messages: Vec<u32>,
    /// `[distinct edges, edge_feature_dim]`, bounded; `None` if edges have no features. With rows in place, those of
    /// the other edges.
    edge_rows: Option<Arc<Tensor>>,
    /// Where the rows of edges are that a GPU reads in place, and the place of each other edge's among `edge_rows`, all
    /// ones for those.
    in_place: Option<(Arc<RowsInPlace>, Vec<u32>)>,
    /// Number of the type of each distinct edge; empty if no types are known.
    types: Vec<u32>,
    /// The rows of edges as they are stored, where these are more than features.
    stored: Vec<f32>,
    /// `[nodes, node_feature_dim]`, bounded.
    node_rows: Vec<f32>,
    /// Version of the source that the edge rows are from.
    version: u64,
}

impl FeatureRows {
    /// Clears the numbered edges.
    pub fn clear(&mut self) {
        self.edges.clear();
        self.numbers.clear();
        self.slots.clear();
        self.messages.clear();
        self.message_edges.clear();
        self.message_times.clear();
        self.next_messages.clear();
        self.in_place = None;
    }

    /// From now on edges below `first` count as zeros: their rows may have been released.
    pub fn keep_from(&mut self, first: EdgeId) {
        self.first = first;
    }

    /// Edges below this one have no rows.
    #[must_use]
    pub fn first(&self) -> EdgeId {
        self.first
    }

    /// Numbers the edges of a sample: in its slots, layer by layer, or as a GPU listed them.
    pub fn number_sample(&mut self, sample: &Neighborhood) {
        match sample.listed_edges() {
            Some(listed) => self.number_all(listed),
            None => self.number_all(sample.graphs().flat_map(|graph| &graph.edges)),
        }
    }

    fn number_all<'s>(&mut self, edges: impl IntoIterator<Item = &'s EdgeId>) {
        self.slots.clear();
        for &edge in edges {
            let number = if edge == MessageFlowGraph::NO_EDGE { EMPTY_SLOT } else { self.number(edge) };
            self.slots.push(number);
        }
    }

    /// Numbers the edges in these runs of the slots of a sample with one layer: the pass reads no others.
    pub fn number_some_slots(&mut self, graph: &MessageFlowGraph, runs: impl Iterator<Item = Range<usize>>) {
        self.slots.clear();
        self.slots.resize(graph.edges.len(), EMPTY_SLOT);
        for slot in runs.flatten().filter(|slot| graph.edges[*slot] != MessageFlowGraph::NO_EDGE) {
            self.slots[slot] = self.number(graph.edges[slot]);
        }
    }

    /// The distinct edges that were numbered; [`MessageFlowGraph::NO_EDGE`] among them if one counts as zeros.
    #[must_use]
    pub fn edges(&self) -> &[u64] {
        &self.edges
    }

    /// Lets `fetch` fill the stored rows of all numbered edges, `[edges, edge_row_dim]`, as a model with these needs
    /// reads them. With `edge_row_dim` 0 there is nothing to fetch.
    ///
    /// # Errors
    /// What `fetch` returns; then there are no rows.
    pub fn fetch_edge_rows<E>(
        &mut self,
        needs: &Needs,
        fetch: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.types.clear();
        self.in_place = None;
        let dimension = needs.edge_row_dim;
        if needs.edge_types == 0 {
            return self.fetch_edges(dimension, fetch);
        }
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(self.edges.len() * dimension, 0.0);
        let fetched = fetch(&self.edges, &mut stored).inspect_err(|_| self.edge_rows = None);
        let split = fetched.and_then(|()| {
            let rows = || stored.chunks_exact(dimension);
            self.types.extend(rows().map(|row| edge_types::number(row[0], needs.edge_types)));
            self.fetch_edges(dimension - 1, |_, out| {
                let out = out.chunks_exact_mut((dimension - 1).max(1));
                out.zip(rows()).for_each(|(features, row)| features.copy_from_slice(&row[1..]));
                Ok(())
            })
        });
        self.stored = stored;
        split
    }

    /// As [`fetch_edge_rows`](Self::fetch_edge_rows) for the edges that were not found; the others are read in place.
    /// Returns how many were fetched.
    ///
    /// # Errors
    /// What `fetch` returns; then there are no rows.
    pub(super) fn fetch_others<E>(
        &mut self,
        needs: &Needs,
        located: Located,
        fetch: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let Located { rows, mut types } = located;
        let (mut others, mut numbers, mut here) = (Vec::new(), Vec::new(), Vec::new());
        for (number, &edge) in self.edges.iter().enumerate() {
            let there = rows.has(number);
            // Edges of a pass are counted in 32 bits.
            here.push(if there { EMPTY_SLOT } else { others.len() as u32 });
            if !there {
                others.push(edge);
                numbers.push(number);
            }
        }
        let all = std::mem::replace(&mut self.edges, others);
        let fetched = self.fetch_edge_rows(needs, fetch);
        let gathered = std::mem::replace(&mut self.edges, all).len();
        fetched?;
        for (&number, &kind) in numbers.iter().zip(&self.types) {
            types[number] = kind;
        }
        self.types = types;
        self.in_place = Some((Arc::new(rows), here));
        Ok(gathered)
    }

    /// The rows that a GPU reads in place, by number, and for each edge its place among [`edge_rows`](Self::edge_rows),
    /// all ones for those in place; `None` if `edge_rows` has all.
    #[must_use]
    pub fn in_place(&self) -> Option<(&Arc<RowsInPlace>, &[u32])> {
        self.in_place.as_ref().map(|(rows, here)| (rows, here.as_slice()))
    }

    /// Copies the features of the edge with this number to `out`; `false` if edges have none.
    pub fn read_edge_row(&self, number: usize, out: &mut [f32]) -> bool {
        let Some(rows) = &self.edge_rows else { return false };
        match &self.in_place {
            Some((in_place, here)) if here[number] == EMPTY_SLOT => in_place.read(number, out),
            Some((_, here)) => out.copy_from_slice(rows.row(here[number] as usize)),
            None => out.copy_from_slice(rows.row(number)),
        }
        true
    }

    /// Lets `fetch` fill the features of all numbered edges, `[edges, dimension]`, and bounds them. With dimension 0
    /// there is nothing to fetch.
    ///
    /// # Errors
    /// What `fetch` returns; then there are no rows.
    fn fetch_edges<E>(
        &mut self,
        dimension: usize,
        fetch: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rows = self.take_room(dimension);
        if dimension == 0 {
            return Ok(());
        }
        let fetched = fetch(&self.edges, rows.data_mut());
        limit(rows.data_mut());
        self.edge_rows = Some(Arc::new(rows));
        fetched.inspect_err(|_| self.edge_rows = None)
    }

    /// Room for a row of each numbered edge, as it is; there are no rows from now on.
    fn take_room(&mut self, dimension: usize) -> Tensor {
        // A tape that is still alive holds the rows of its own pass: those stay as they are.
        let kept = self.edge_rows.take().and_then(|rows| Arc::try_unwrap(rows).ok());
        let kept = kept.filter(|rows| rows.cols() == dimension);
        let mut rows = kept.unwrap_or_else(|| Tensor::zeros(&Device::Cpu, 0, dimension));
        rows.set_rows(self.edges.len());
        rows
    }

    /// Lets `fetch` fill the rows of `nodes`, `[nodes, dimension]`, and bounds them. With dimension 0 there is
    /// nothing to fetch.
    ///
    /// # Errors
    /// What `fetch` returns.
    pub fn fetch_nodes<E>(
        &mut self,
        nodes: &[NodeId],
        dimension: usize,
        fetch: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.node_rows.clear();
        if dimension == 0 {
            return Ok(());
        }
        let ids: Vec<u64> = nodes.iter().map(|&NodeId(id)| u64::from(id)).collect();
        self.node_rows.resize(nodes.len() * dimension, 0.0);
        fetch(&ids, &mut self.node_rows)?;
        limit(&mut self.node_rows);
        Ok(())
    }

    /// Sets the version of the source that the edge rows are from: rows of the same version and edge are the same.
    pub fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    /// The version that [`set_version`](Self::set_version) set last; 0 at first.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The rows of the numbered edges, to be shared with a tape.
    #[must_use]
    pub fn edge_rows(&self) -> Option<Arc<Tensor>> {
        self.edge_rows.clone()
    }

    /// The row number of each slot, or of each edge that a GPU listed.
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// The number of the type of the edge in each of the first `slots` slots, 0 in empty ones; nothing if no types are
    /// known.
    pub(super) fn slot_types(&self, slots: usize) -> Vec<u32> {
        if self.types.is_empty() {
            return Vec::new();
        }
        let number = |&slot: &u32| self.types.get(slot as usize).copied().unwrap_or_default();
        self.slots[..slots].iter().map(number).collect()
    }

    /// The rows of all edges, if they are here.
    fn rows_here(&self) -> Option<&Tensor> {
        self.edge_rows.as_deref().filter(|_| self.in_place.is_none())
    }

    /// The rows of the nodes, one after another.
    #[must_use]
    pub fn node_rows(&self) -> &[f32] {
        &self.node_rows
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let messages = self.messages.capacity() + self.next_messages.capacity();
        let numbers = self.slots.capacity() + messages + self.node_rows.capacity();
        let numbers = numbers + self.types.capacity() + self.stored.capacity();
        let rows = self.edge_rows.as_ref().map_or(0, |rows| rows.capacity());
        let places = self.in_place.as_ref().map_or(0, |(rows, here)| 2 * rows.len() + here.capacity());
        (numbers + rows + places) * size_of::<f32>()
            + (self.edges.capacity() + self.message_edges.capacity() + self.message_times.capacity())
                * size_of::<u64>()
            + self.numbers.allocation_size()
    }

    fn number(&mut self, edge: EdgeId) -> u32 {
        let edge = if edge < self.first { MessageFlowGraph::NO_EDGE } else { edge };
        *self.numbers.entry(edge.0).or_insert_with(|| {
            self.edges.push(edge.0);
            // Slots and nodes of a pass are counted in 32 bits.
            (self.edges.len() - 1) as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EdgeTypes, Mailbox, TgnOptions};

    fn fetch(edges: &[u64], out: &mut [f32]) -> Result<(), ()> {
        for (row, &edge) in out.chunks_exact_mut(2).zip(edges) {
            row.fill(edge as f32 * 100.0);
        }
        Ok(())
    }

    #[test]
    fn every_edge_is_fetched_once_and_bounded() {
        let sample = MessageFlowGraph {
            fanout: 2,
            edges: [5, 7, 5, u64::MAX].map(EdgeId).to_vec(),
            ..MessageFlowGraph::default()
        };
        let mut rows = FeatureRows::default();
        for _ in 0..2 {
            rows.clear();
            rows.number_all(&sample.edges);
            rows.index_messages((&[1, 2, 3].map(NodeId), 0..3), EventTime::MIN, |NodeId(id)| {
                (id != 2).then_some((EdgeId(4 + u64::from(id)), EventTime(0)))
            });
            assert_eq!((rows.edges(), rows.slots()), (&[5, 7][..], &[0, 1, 0, EMPTY_SLOT][..]));
            rows.fetch_edges(2, fetch).unwrap();
            let found = rows.edge_rows().unwrap();
            assert!(found.row(0)[0] > 100.0 && found.row(0)[0] < 500.0, "{:?}", found.row(0));
            let messages = rows.messages();
            assert_eq!(
                (messages.of(0), messages.of(1), messages.of(2)),
                (Some((0, found.row(0))), None, Some((0, found.row(1))))
            );
        }
        rows.clear();
        rows.keep_from(EdgeId(6));
        rows.number_all(&sample.edges);
        assert_eq!(
            (rows.edges(), rows.slots()),
            (&[u64::MAX, 7][..], &[0, 1, 0, EMPTY_SLOT][..]),
            "no row of 5"
        );
        rows.index_messages((&[1, 2, 3].map(NodeId), 0..3), EventTime::MIN, |NodeId(id)| {
            (id != 2).then_some((EdgeId(4 + u64::from(id)), EventTime(0)))
        });
        assert_eq!(rows.edges(), [u64::MAX, 7]);
        let mut mailbox = Mailbox::new(1);
        mailbox.post(NodeId(1), NodeId(3), EdgeId(5), EventTime(0));
        assert!(!rows.has_messages_of(|node| mailbox.pending_event(node), &[1, 2, 3].map(NodeId)));
        mailbox.post(NodeId(3), NodeId(1), EdgeId(7), EventTime(0));
        assert!(rows.has_messages_of(|node| mailbox.pending_event(node), &[1, 2, 3].map(NodeId)));
    }

    #[test]
    fn edges_that_are_not_read_are_not_fetched() {
        let sample = MessageFlowGraph {
            fanout: 2,
            edges: [5, 7, 6, 9, 5, u64::MAX].map(EdgeId).to_vec(),
            ..MessageFlowGraph::default()
        };
        let (mut rows, mut mailbox) = (FeatureRows::default(), Mailbox::new(1));
        rows.number_some_slots(&sample, [0..1, 3..6].into_iter());
        let none = EMPTY_SLOT;
        assert_eq!((rows.edges(), rows.slots()), (&[5, 9][..], &[0, none, none, 1, 0, none][..]));
        let nodes = [1, 2, 3].map(NodeId);
        for node in nodes {
            mailbox.post(node, NodeId(0), EdgeId(u64::from(node.0)), EventTime(0));
        }
        rows.index_messages((&nodes, 1..2), EventTime::MIN, |node| mailbox.pending_event(node));
        rows.fetch_edges(2, fetch).unwrap();
        assert_eq!(rows.edges(), [5, 9, 2]);
        assert_eq!([0, 1, 2].map(|place| rows.messages().of(place).is_some()), [false, true, false]);
        assert!(
            rows.has_messages_of(|node| mailbox.pending_event(node), &nodes),
            "those of the other nodes are known all the same"
        );
    }

    #[test]
    fn the_time_of_a_message_decides_whether_it_has_features() {
        let mut mailbox = Mailbox::new(1);
        for (node, time) in [(1, 49), (2, 50), (4, i64::MIN)] {
            mailbox.post(NodeId(node), NodeId(0), EdgeId(u64::from(node)), EventTime(time));
        }
        let (nodes, since) = ([1, 2, 3, 4].map(NodeId), EventTime(50));
        let mut rows = FeatureRows::default();
        rows.index_messages((&nodes, 0..4), since, |node| mailbox.pending_event(node));
        rows.index_next_messages(since, [(EdgeId(9), EventTime(50)), (EdgeId(8), EventTime(49))].into_iter());
        assert_eq!(rows.edges(), [u64::MAX, 2, 9], "what has no features is not asked for");
        rows.fetch_edges(1, |edges, out| {
            out.copy_from_slice(
                &edges.iter().map(|&edge| if edge < 10 { 1.0 } else { 0.0 }).collect::<Vec<_>>(),
            );
            Ok::<_, ()>(())
        })
        .unwrap();
        let (messages, next) = (rows.messages(), rows.next_messages());
        assert_eq!([0, 1, 3].map(|place| messages.of(place).unwrap().1[0] > 0.0), [false, true, false]);
        assert_eq!(
            (messages.of(2), [0, 1].map(|place| next.of(place).unwrap().1[0] > 0.0)),
            (None, [true, false])
        );
        assert!(
            rows.has_messages_of(|node| mailbox.pending_event(node), &nodes),
            "they are the messages that wait all the same"
        );
        mailbox.post(NodeId(1), NodeId(0), EdgeId(7), EventTime(49));
        assert!(!rows.has_messages_of(|node| mailbox.pending_event(node), &nodes));
    }

    #[test]
    fn the_type_of_an_edge_is_read_apart_from_its_features() {
        for features in [2, 0] {
            let types = EdgeTypes::new(3, 4);
            let needs = TgnOptions { edge_feature_dim: features, edge_types: types, ..TgnOptions::default() };
            let needs = needs.needs();
            let sample = MessageFlowGraph {
                fanout: 2,
                edges: [5, 2, 5, u64::MAX].map(EdgeId).to_vec(),
                ..MessageFlowGraph::default()
            };
            let mut rows = FeatureRows::default();
            rows.number_all(&sample.edges);
            rows.index_messages((&[NodeId(0)], 0..1), EventTime::MIN, |_| Some((EdgeId(2), EventTime(0))));
            let stored = |edges: &[u64], out: &mut [f32]| {
                for (row, &edge) in out.chunks_exact_mut(1 + features).zip(edges) {
                    row.fill(0.5);
                    row[0] = edge as f32;
                }
                Ok::<_, ()>(())
            };
            rows.fetch_edge_rows(&needs, stored).unwrap();
            assert_eq!(rows.slot_types(4), [0, 2, 0, 0], "5 is beyond what is known");
            assert_eq!(rows.edge_rows().map(|rows| rows.shape()), (features > 0).then_some((2, features)));
            assert_eq!(rows.messages().of(0), Some((2, &[0.5, 0.5][..features])));
            assert_eq!(rows.fetch_edge_rows(&needs, |_, _| Err("disk")), Err("disk"));
            assert_eq!((rows.edge_rows().is_none(), rows.slot_types(4)), (true, vec![]));
        }
    }

    #[test]
    fn a_failed_fetch_leaves_no_rows() {
        let mut rows = FeatureRows::default();
        rows.index_messages((&[NodeId(0)], 0..1), EventTime::MIN, |_| Some((EdgeId(3), EventTime(0))));
        rows.fetch_edges(2, fetch).unwrap();
        assert_eq!(rows.fetch_edges(2, |_, _| Err("disk")), Err("disk"));
        assert!(rows.edge_rows().is_none());
        rows.fetch_edges(0, |_, _| Err("not asked")).unwrap();
    }
}
