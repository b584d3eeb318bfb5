//! What a neighbor's slot holds, put together in one pass:
//! `out[i] = [nodes[node[i]] ; edges[edge[i]] ; cos(deltas[i] * w + b)]`, or zeros in an empty slot.
//!
//! Backward: the first columns are added up by node, the last ones go to a learned `w` and `b`. Edge rows are data.

use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::layers::{Part, SlotTimes, clear_empty, slot_rows};
use crate::nn::cpu::slot_rows as cpu;
use crate::nn::cuda::rows_of;
use crate::nn::cuda::time::Waves;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{List, Places, Tape, Tensor, TimeEncoder, Var};

use super::gather::{add_up, check_slots};
use super::time;

/// Arguments of [`Tape::slot_rows`] for `n` rows.
#[derive(Clone, Debug)]
pub struct SlotRows<'a> {
    /// Table of node rows, `[any, dn]`.
    pub nodes: Var,
    /// Row of `nodes` for each row, `[n]`; `u32::MAX` for an empty slot.
    /// On a GPU only where `nodes` has no columns: then it says which slots are empty.
    pub node: List<u32>,
    /// Table of edge rows, `[any, de]`, without a gradient, and its row for each row, `[n]`, which is not read in an
    /// empty slot; `None` means `de = 0`.
    pub edges: Option<(Arc<Tensor>, Places)>,
    /// Time differences, `[n]`.
    pub deltas: List<f32>,
    /// Their encoding.
    pub time: &'a TimeEncoder,
}

struct Rows {
    nodes: Var,
    node: List<u32>,
    edge_cols: usize,
    deltas: List<f32>,
    time: TimeEncoder,
}

impl Tape<'_> {
    /// Node row, edge row and encoded time difference side by side: `[n, dn + de + time]`.
    ///
    /// # Panics
    /// If the columns differ in length or name a row that is not there.
    pub fn slot_rows(&mut self, args: SlotRows<'_>) -> Var {
        self.check_slot_rows(&args);
        let (n, node_cols) = (args.node.len(), self.value(args.nodes).cols());
        let parameters = self.parameters();
        let edge_cols = args.edges.as_ref().map_or(0, |(rows, _)| rows.cols());
        let mut out = self.room(n, node_cols + edge_cols + args.time.dim(parameters));
        match self.device() {
            Device::Cpu => {
                let (w, b) = args.time.weights(parameters);
                // Without edge rows any number will do.
                let none = (&[][..], args.node.values());
                let (edges, edge) =
                    args.edges.as_ref().map_or(none, |(rows, list)| (rows.data(), list.values()));
                let parts = cpu::Parts {
                    nodes: self.value(args.nodes).data(),
                    node_cols,
                    node: args.node.values(),
                    edges,
                    edge_cols,
                    edge,
                    deltas: args.deltas.values(),
                    w,
                    b,
                };
                cpu::join(out.data_mut(), parts);
            }
            Device::Cuda(work) => {
                let waves = Waves::of(work, args.time, parameters);
                let (nodes, there) = (self.value(args.nodes), self.device());
                let (node, deltas) = (args.node.sent(work), args.deltas.sent(work));
                let edges = args.edges.as_ref().map(|(rows, list)| {
                    let copied = (rows.device() != there).then(|| Arc::new(rows.to(there)));
                    (copied.unwrap_or_else(|| rows.clone()), list.sent(work))
                });
                work.run(|context| {
                    let nodes = rows_of(nodes, Some(node.get()?))?;
                    let edges = match &edges {
                        Some((rows, list)) => rows_of(rows, Some(list.get()?))?,
                        None => Part { shape: [0, 0], list: None, ..nodes },
                    };
                    let (w, b) = waves.get()?;
                    let columns = out.cols() - nodes.shape[1] - edges.shape[1];
                    let times = SlotTimes { deltas: deltas.get()?, w, b, columns };
                    slot_rows(context, [nodes, edges], times, n, out.on_gpu_mut()?)
                });
            }
        }
        let learned = self.training() && matches!(args.time, TimeEncoder::Trained { .. });
        let needs = self.needs(args.nodes) || learned;
        let SlotRows { nodes, node, deltas, .. } = args;
        let saved = Rows { nodes, node, edge_cols, deltas, time: args.time.clone() };
        self.push(out, needs, needs.then(|| Box::new(saved) as _))
    }

    fn check_slot_rows(&self, args: &SlotRows<'_>) {
        let (n, (rows, cols)) = (args.node.len(), self.value(args.nodes).shape());
        assert_eq!(args.deltas.len(), n, "slot_rows: a difference per row");
        match args.node.on_host() {
            Some(node) => check_slots(node, rows),
            None => assert_eq!(cols, 0, "slot_rows: a list on a GPU of rows that are read"),
        }
        if let Some((rows, edge)) = &args.edges {
            assert_eq!(edge.len(), n, "slot_rows: an edge per row");
            edge.check(&args.node, rows.rows());
        }
    }
}

impl Backward for Rows {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        // An empty slot depends on nothing.
        match walk.device {
            Device::Cpu => {
                let empty = self.node.values().iter().enumerate().filter(|(_, node)| **node == u32::MAX);
                empty.for_each(|(slot, _)| d.row_mut(slot).fill(0.0));
            }
            Device::Cuda(work) => work.run(|context| {
                let (slots, count, columns) = (self.node.sent(work), self.node.len(), d.cols());
                clear_empty(context, slots.get()?, count, columns, d.on_gpu_mut()?)
            }),
        }
        let node_cols = walk.value(self.nodes).cols();
        walk.flow_with(self.nodes, |dn, overwrite| add_up(dn, overwrite, self.node.values(), &d));
        if let TimeEncoder::Trained { w, b } = self.time {
            time::backward(walk, (w, b), &self.deltas, (&d, node_cols + self.edge_cols));
        }
        walk.give(d);
    }
}
