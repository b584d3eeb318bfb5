//! A whole event stream in memory, column by column and in order of time, for evaluation.
//!
//! Row numbers serve as edge ids. Events with equal times keep the order of the file; a file that is
//! not in order is sorted, and how many events had to move is reported. Types of
//! edges are numbered as a log numbers them, from 1 on in the order in which they were pushed. Reads no files; the
//! caller pushes events.

use std::ops::Range;

use hashbrown::HashMap;

use crate::event::{EdgeBatch, EdgeEvent, EdgeId, EventTime, NodeId, NodeKey, Op};
use crate::graph::NodeDictionary;

/// Events in order of time.
pub struct Stream {
    keys: NodeDictionary,
    nodes: usize,
    src: Vec<NodeId>,
    dst: Vec<NodeId>,
    times: Vec<EventTime>,
    /// 0 where there is none.
    types: Vec<u16>,
    /// NaN where there is none.
    labels: Vec<f32>,
    feature_ends: Vec<usize>,
    feature_values: Vec<f32>,
    feature_dimension: usize,
    late: usize,
}

/// Collects a [`Stream`].
pub struct StreamBuilder {
    stream: Stream,
    numbers: HashMap<Box<str>, u16>,
    latest: EventTime,
}

impl Default for StreamBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamBuilder {
    /// An empty stream.
    #[must_use]
    pub fn new() -> Self {
        let stream = Stream {
            keys: NodeDictionary::new(),
            nodes: 0,
            src: Vec::new(),
            dst: Vec::new(),
            times: Vec::new(),
            types: Vec::new(),
            labels: Vec::new(),
            feature_ends: Vec::new(),
            feature_values: Vec::new(),
            feature_dimension: 0,
            late: 0,
        };
        Self { stream, numbers: HashMap::new(), latest: EventTime::MIN }
    }

    /// Adds an event. Node ids are given in order of first appearance.
    pub fn push(&mut self, event: &EdgeEvent) {
        let kind = event.edge_type.as_deref().map_or(0, |name| self.type_number(name));
        let stream = &mut self.stream;
        let (src, dst) = (stream.keys.intern(&event.src), stream.keys.intern(&event.dst));
        stream.nodes = stream.nodes.max(src.index() + 1).max(dst.index() + 1);
        stream.src.push(src);
        stream.dst.push(dst);
        stream.times.push(event.time);
        stream.types.push(kind);
        stream.labels.push(event.label.unwrap_or(f32::NAN));
        stream.feature_values.extend_from_slice(&event.features);
        stream.feature_ends.push(stream.feature_values.len());
        stream.feature_dimension = stream.feature_dimension.max(event.features.len());
        stream.late += usize::from(event.time < self.latest);
        self.latest = self.latest.max(event.time);
    }

    /// The number of a type, the next one on first sight; "none" when there is none left.
    fn type_number(&mut self, name: &str) -> u16 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let Ok(number) = u16::try_from(self.numbers.len() + 1) else { return 0 };
        self.numbers.insert(name.into(), number);
        number
    }

    /// The stream, in order of time.
    #[must_use]
    pub fn finish(self) -> Stream {
        let stream = self.stream;
        if stream.late == 0 {
            return stream;
        }
        let mut order: Vec<usize> = (0..stream.len()).collect();
        order.sort_by_key(|&row| stream.times[row]);
        let mut sorted = Stream {
            src: order.iter().map(|&row| stream.src[row]).collect(),
            dst: order.iter().map(|&row| stream.dst[row]).collect(),
            times: order.iter().map(|&row| stream.times[row]).collect(),
            types: order.iter().map(|&row| stream.types[row]).collect(),
            labels: order.iter().map(|&row| stream.labels[row]).collect(),
            feature_ends: Vec::with_capacity(stream.len()),
            feature_values: Vec::with_capacity(stream.feature_values.len()),
            ..stream
        };
        for row in order {
            let values = feature_row(&stream.feature_ends, &stream.feature_values, row);
            sorted.feature_values.extend_from_slice(values);
            sorted.feature_ends.push(sorted.feature_values.len());
        }
        sorted
    }
}

fn feature_row<'a>(ends: &[usize], values: &'a [f32], row: usize) -> &'a [f32] {
    let start = if row == 0 { 0 } else { ends[row - 1] };
    &values[start..ends[row]]
}

impl Stream {
    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.src.len()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.src.is_empty()
    }

    /// Number of nodes; their ids are `0..nodes()`.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Number of events that stood behind a later one in the order they were pushed.
    #[must_use]
    pub fn late(&self) -> usize {
        self.late
    }

    /// Source nodes by row.
    #[must_use]
    pub fn src(&self) -> &[NodeId] {
        &self.src
    }

    /// Destination nodes by row.
    #[must_use]
    pub fn dst(&self) -> &[NodeId] {
        &self.dst
    }

    /// Event times by row, ascending.
    #[must_use]
    pub fn times(&self) -> &[EventTime] {
        &self.times
    }

    /// Numbers of the types of events by row, 0 where there is none.
    #[must_use]
    pub fn types(&self) -> &[u16] {
        &self.types
    }

    /// The label of event `row`, if it has one.
    #[must_use]
    pub fn label(&self, row: usize) -> Option<f32> {
        self.labels.get(row).copied().filter(|label| !label.is_nan())
    }

    /// Length of the longest feature row.
    #[must_use]
    pub fn feature_dimension(&self) -> usize {
        self.feature_dimension
    }

    /// The feature row of event `row`, which is one of the stream; empty if it has none.
    #[must_use]
    pub fn features(&self, row: usize) -> &[f32] {
        feature_row(&self.feature_ends, &self.feature_values, row)
    }

    /// The node with this key, if it occurs.
    #[must_use]
    pub fn node(&self, key: &NodeKey) -> Option<NodeId> {
        self.keys.lookup(key)
    }

    /// The rows of `range` as a batch for a graph store, with the row number as edge id. Rows that `keep`
    /// refuses become records without an edge, so that numbering goes on without a gap.
    #[must_use]
    pub fn edge_batch(&self, range: Range<usize>, keep: impl Fn(usize) -> bool) -> EdgeBatch {
        let mut batch = EdgeBatch { first: EdgeId(range.start as u64), ..EdgeBatch::default() };
        for (i, row) in range.enumerate() {
            batch.push_edge(self.src[row], self.dst[row], self.times[row]);
            if !keep(row) {
                batch.op[i] = Op::Node;
                batch.dst[i] = batch.src[i];
            }
        }
        batch
    }
}

/// The stream of `(source, destination, time)`, for tests.
#[cfg(test)]
pub(super) fn of_events(events: impl IntoIterator<Item = (i64, i64, i64)>) -> Stream {
    use crate::event::NodeKey;
    let mut builder = StreamBuilder::new();
    for (src, dst, time) in events {
        builder.push(&EdgeEvent {
            src: NodeKey::Int(src),
            dst: NodeKey::Int(dst),
            time: EventTime(time),
            edge_type: None,
            features: vec![],
            label: None,
        });
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(src: i64, dst: i64, time: i64, features: &[f32]) -> EdgeEvent {
        EdgeEvent {
            src: NodeKey::Int(src),
            dst: NodeKey::Int(dst),
            time: EventTime(time),
            edge_type: None,
            features: features.to_vec(),
            label: None,
        }
    }

    #[test]
    fn late_events_are_sorted_with_their_features_and_ties_keep_their_order() {
        let mut builder = StreamBuilder::new();
        for (src, time, features) in
            [(1, 5, &[1.0][..]), (2, 3, &[2.0, 3.0]), (3, 5, &[]), (4, 3, &[4.0]), (5, 4, &[5.0])]
        {
            builder.push(&event(src, 9, time, features));
        }
        let stream = builder.finish();
        let id = |key| stream.node(&NodeKey::Int(key)).unwrap();
        assert_eq!(stream.src(), [id(2), id(4), id(5), id(1), id(3)]);
        assert_eq!(stream.times().iter().map(|t| t.0).collect::<Vec<_>>(), [3, 3, 4, 5, 5]);
        let rows: Vec<&[f32]> = (0..5).map(|row| stream.features(row)).collect();
        assert_eq!(rows, [&[2.0, 3.0][..], &[4.0], &[5.0], &[1.0], &[]]);
        assert_eq!((stream.late(), stream.nodes(), stream.feature_dimension()), (3, 6, 2));
        assert!(stream.node(&NodeKey::Int(77)).is_none());
    }

    #[test]
    fn types_are_numbered_as_they_come_and_stay_with_their_events() {
        let mut builder = StreamBuilder::new();
        for (time, kind) in [(5, Some("b")), (3, None), (4, Some("a")), (9, Some("b"))] {
            builder.push(&EdgeEvent { edge_type: kind.map(Into::into), ..event(1, 2, time, &[]) });
        }
        assert_eq!(builder.finish().types(), [0, 2, 1, 1]);
    }

    #[test]
    fn rows_left_out_keep_their_number_but_bring_no_edge() {
        let mut builder = StreamBuilder::default();
        for i in 0..4 {
            builder.push(&event(i, i + 1, i, &[]));
        }
        let stream = builder.finish();
        let batch = stream.edge_batch(1..4, |row| row != 2);
        assert_eq!(batch.first, EdgeId(1));
        assert_eq!(batch.op, [Op::Edge, Op::Node, Op::Edge]);
        assert_eq!((batch.src[1], batch.dst[1]), (stream.src()[2], stream.src()[2]));
        assert_eq!((batch.src[2], batch.dst[2]), (stream.src()[3], stream.dst()[3]));
    }
}
