//! Rows put together from a node's row, an edge's row and the encoding of a time difference, in one pass.

use rayon::prelude::*;

use crate::device::simd::vectorized;

use super::gather::{ahead, ask_for};
use super::piece_rows;
use super::time::encode_row;

/// Where the parts come from: tables of rows, and which row of each.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub nodes: &'a [f32],
    pub node_cols: usize,
    pub node: &'a [u32],
    pub edges: &'a [f32],
    pub edge_cols: usize,
    pub edge: &'a [u32],
    pub deltas: &'a [f32],
    pub w: &'a [f32],
    pub b: &'a [f32],
}

impl Parts<'_> {
    /// Columns of a row.
    pub fn cols(&self) -> usize {
        self.node_cols + self.edge_cols + self.w.len()
    }
}

vectorized! {
    fn join_rows<const FMA: bool>(out: &mut [f32], first: usize, parts: Parts<'_>) {
        let p = parts;
        let far = ahead(p.nodes.len().max(p.edges.len()), p.cols());
        for (n, out) in out.chunks_exact_mut(p.cols()).enumerate() {
            let i = first + n;
            if let (Some(node), Some(edge)) = (p.node.get(i + far), p.edge.get(i + far)) {
                ask_for(p.nodes, *node as usize * p.node_cols, p.node_cols);
                ask_for(p.edges, *edge as usize * p.edge_cols, p.edge_cols);
            }
            if p.node[i] == u32::MAX {
                out.fill(0.0);
                continue;
            }
            let (node, rest) = out.split_at_mut(p.node_cols);
            let (edge, time) = rest.split_at_mut(p.edge_cols);
            node.copy_from_slice(&p.nodes[p.node[i] as usize * p.node_cols..][..p.node_cols]);
            edge.copy_from_slice(&p.edges[p.edge[i] as usize * p.edge_cols..][..p.edge_cols]);
            encode_row::<FMA>(time, p.deltas[i], p.w, p.b);
        }
    }
}

/// `out[i] = [nodes[node[i]] ; edges[edge[i]] ; cos(deltas[i] * w + b)]`; zeros where `node[i]` is `u32::MAX`.
pub fn join(out: &mut [f32], parts: Parts<'_>) {
    if parts.cols() == 0 {
        return;
    }
    let rows = piece_rows(parts.cols());
    out.par_chunks_mut(rows * parts.cols())
        .enumerate()
        .for_each(|(piece, out)| join_rows(out, piece * rows, parts));
}
