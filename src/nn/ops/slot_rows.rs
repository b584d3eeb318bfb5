//! What a neighbor's slot holds, put together in one pass:
//! `out[i] = [nodes[node[i]] ; edges[edge[i]] ; cos(deltas[i] * w + b)]`, or zeros in an empty slot.
//!
//! Backward: the first columns are added up by node, the last ones go to a learned `w` and `b`. Edge rows are data.

use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::layers::{SlotTimes, clear_empty, slot_rows};
use crate::nn::cpu::gather::{InverseIndex, scatter_add};
use crate::nn::cpu::slot_rows as cpu;
use crate::nn::cuda::gather as rows;
use crate::nn::cuda::rows_of;
use crate::nn::cuda::time::Waves;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, Tensor, TimeEncoder, Var};

use super::gather::check_slots;
use super::time;

/// Arguments of [`Tape::slot_rows`] for `n` rows.
#[derive(Clone, Debug)]
pub struct SlotRows<'a> {
    /// Table of node rows, `[any, dn]`.
    pub nodes: Var,
    /// Row of `nodes` for each row, `[n]`; `u32::MAX` for an empty slot.
    pub node: Arc<Vec<u32>>,
    /// Table of edge rows, `[any, de]`; no gradient.
    pub edges: Arc<Tensor>,
    /// Row of `edges` for each row, `[n]`; not read in an empty slot.
    pub edge: Arc<Vec<u32>>,
    /// Time differences, `[n]`.
    pub deltas: Arc<Vec<f32>>,
    /// Their encoding.
    pub time: &'a TimeEncoder,
}

struct Rows {
    nodes: Var,
    node: Arc<Vec<u32>>,
    edge_cols: usize,
    deltas: Arc<Vec<f32>>,
    time: TimeEncoder,
}

impl Tape<'_> {
    /// Node row, edge row and encoded time difference side by side: `[n, dn + de + time]`.
    ///
    /// # Panics
    /// If the columns differ in length or name a row that is not there.
    pub fn slot_rows(&mut self, args: SlotRows<'_>) -> Var {
        let (rows, node_cols) = self.value(args.nodes).shape();
        let n = args.node.len();
        assert_eq!(
            (args.edge.len(), args.deltas.len()),
            (n, n),
            "slot_rows: an edge and a difference per row"
        );
        check_slots(&args.node, rows);
        let edges = args.edge.iter().zip(args.node.iter()).filter(|(_, node)| **node != u32::MAX);
        assert!(
            edges.into_iter().all(|(edge, _)| (*edge as usize) < args.edges.rows()),
            "slot_rows: edge rows"
        );
        let parameters = self.parameters();
        let edge_cols = args.edges.cols();
        let mut out = self.room(n, node_cols + edge_cols + args.time.dim(parameters));
        match self.device() {
            Device::Cpu => {
                let (w, b) = args.time.weights(parameters);
                let parts = cpu::Parts {
                    nodes: self.value(args.nodes).data(),
                    node_cols,
                    node: &args.node,
                    edges: args.edges.data(),
                    edge_cols,
                    edge: &args.edge,
                    deltas: &args.deltas,
                    w,
                    b,
                };
                cpu::join(out.data_mut(), parts);
            }
            Device::Cuda(work) => {
                let waves = Waves::of(work, args.time, parameters);
                let (nodes, there) = (self.value(args.nodes), self.device());
                let lists = [work.upload(&args.node), work.upload(&args.edge)];
                let copied = (args.edges.device() != there).then(|| args.edges.to(there));
                let (edges, deltas) = (copied.as_ref().unwrap_or(&args.edges), work.upload(&args.deltas));
                let columns = out.cols() - nodes.cols() - edges.cols();
                work.run(|context| {
                    let [node, edge] = [lists[0].get()?, lists[1].get()?];
                    let parts = [rows_of(nodes, Some(node))?, rows_of(edges, Some(edge))?];
                    let (w, b) = waves.get()?;
                    let times = SlotTimes { deltas: deltas.get()?, w, b, columns };
                    slot_rows(context, parts, times, args.node.len(), out.on_gpu_mut()?)
                });
            }
        }
        let learned = self.training() && matches!(args.time, TimeEncoder::Trained { .. });
        let needs = self.needs(args.nodes) || learned;
        let SlotRows { nodes, node, deltas, .. } = args;
        let saved = Rows { nodes, node, edge_cols, deltas, time: args.time.clone() };
        self.push(out, needs, needs.then(|| Box::new(saved) as _))
    }
}

impl Backward for Rows {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        // An empty slot depends on nothing.
        match walk.device {
            Device::Cpu => {
                let empty = self.node.iter().enumerate().filter(|(_, node)| **node == u32::MAX);
                empty.for_each(|(slot, _)| d.row_mut(slot).fill(0.0));
            }
            Device::Cuda(work) => work.run(|context| {
                let (slots, count, columns) = (work.upload(&self.node), self.node.len(), d.cols());
                clear_empty(context, slots.get()?, count, columns, d.on_gpu_mut()?)
            }),
        }
        let (stride, node_cols) = (d.cols(), walk.value(self.nodes).cols());
        walk.flow_with(self.nodes, |dn, overwrite| match d.device() {
            Device::Cpu => {
                let inverse = InverseIndex::new(&self.node, dn.rows());
                scatter_add(dn.data_mut(), node_cols, overwrite, &inverse, d.data(), stride);
            }
            Device::Cuda(work) => rows::scatter_add(work, dn, &d, &self.node, overwrite),
        });
        if let TimeEncoder::Trained { w, b } = self.time {
            time::backward(walk, (w, b), &self.deltas, (&d, node_cols + self.edge_cols));
        }
        walk.give(d);
    }
}
