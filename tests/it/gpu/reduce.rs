//! Groups of rows reduced, and rows of slots put together, cleared and replaced on a GPU: the tape's, bit for bit where
//! nothing is added up by readers.

use std::sync::Arc;

use evergraph::device::Device;
use evergraph::device::cuda::CudaWork;
use evergraph::device::cuda::layers::{
    Layout, Part, SlotTimes, broadcast_slots, clear_empty, clear_rows, pieces_of, put_rows, reduce_slots,
    scatter_add_rows, slot_rows, time_backward,
};
use evergraph::device::cuda::{CudaBuffer, CudaError};
use evergraph::nn::{Groups, InverseIndex, Reduce, SlotRows, Tensor, TimeEncoder};

use super::layers::{On, agree, summed, wide};
use super::{Draws, gpu};
use crate::kernels_host::nn::{Inputs, twin_fuses};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[track_caller]
fn same(found: &CudaBuffer<f32>, expected: &[f32], what: &str) {
    assert_eq!(bits(&found.copy_to_host().unwrap()), bits(expected), "{what}");
}

#[track_caller]
fn refused(result: Result<(), CudaError>, words: &str) {
    let message = result.unwrap_err().to_string();
    assert!(message.contains(words), "{message}");
}

#[test]
fn groups_of_slots_are_reduced_and_spread_on_a_gpu_bit_for_bit() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(1);
    for (groups, slots, columns) in [(1, 1, 1), (70, 10, 33), (5, 32, 100), (3, 7, 600)] {
        // The first group is empty, the second one full.
        let counts: Vec<u32> = (0..groups)
            .map(|group| match group {
                0 if groups > 1 => 0,
                1 => slots as u32,
                _ => draws.below(slots + 1) as u32,
            })
            .collect();
        let rows = groups * slots * columns;
        let (x, d) = (draws.floats(rows, 1.0), draws.floats(groups * columns, 1.0));
        let inputs = Inputs::new(&[("x", columns, &x)]);
        let (x, on_d, on_counts) = (on.copy(&x), on.copy(&d), on.copy(&counts));
        for (mean, reduce) in [(false, Reduce::Sum), (true, Reduce::Mean)] {
            let (value, gradients) = inputs.run(&d, &["x"], |tape, parameters| {
                let x = tape.param(parameters.find("x").unwrap());
                tape.reduce(x, &Groups::Slots { slots, counts: Arc::new(counts.clone()) }, reduce)
            });
            let (mut out, mut dx) = (on.room(groups * columns), on.room(rows));
            let all = (&on_counts, groups, slots);
            reduce_slots(on.context(), all, &x, columns, mean, &mut out).unwrap();
            same(&out, &value, "groups");
            broadcast_slots(on.context(), all, &on_d, columns, mean, &mut dx).unwrap();
            same(&dx, &gradients[0], "rows");
        }
        let (mut out, mut dx) = (on.room(groups * columns), on.room(rows));
        let more = (&on_counts, groups + 1, slots);
        refused(reduce_slots(on.context(), more, &x, columns, true, &mut out), "counts: ");
        refused(broadcast_slots(on.context(), more, &on_d, columns, true, &mut dx), "counts: ");
        let all = (&on_counts, groups, slots + 1);
        refused(reduce_slots(on.context(), all, &x, columns, true, &mut out), "rows: ");
        refused(broadcast_slots(on.context(), all, &on_d, columns, true, &mut dx), "rows: ");
        let all = (&on_counts, groups, slots);
        let short = &mut on.room(groups * columns - 1);
        refused(reduce_slots(on.context(), all, &x, columns, true, short), "sums: ");
        refused(broadcast_slots(on.context(), all, short, columns, true, &mut dx), "gradients: ");
    }
    // A count that a group cannot have reads nobody else's rows.
    let (counts, x, mut out) = (on.copy(&[9_u32]), on.copy(&[1.0_f32, 2.0]), on.room(1));
    reduce_slots(on.context(), (&counts, 1, 2), &x, 1, true, &mut out).unwrap();
    same(&out, &[1.5], "two rows of nine");
}

#[test]
fn rows_are_cleared_and_replaced_on_a_gpu() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(2);
    for columns in [1, 33, 100] {
        let (table, from) = (draws.floats(20 * columns, 1.0), draws.floats(4 * columns, 1.0));
        // Row 20 is none, and what stands behind the fourth does not count.
        let rows = on.copy(&[3_u32, 20, 19, 0, 7]);
        let (mut cleared, mut replaced) = (table.clone(), table.clone());
        for (i, row) in [(0, 3), (2, 19), (3, 0)] {
            cleared[row * columns..][..columns].fill(0.0);
            replaced[row * columns..][..columns].copy_from_slice(&from[i * columns..][..columns]);
        }
        let mut found = on.copy(&table);
        clear_rows(on.context(), &rows, 4, columns, &mut found).unwrap();
        same(&found, &cleared, "cleared");
        let (mut found, from) = (on.copy(&table), on.copy(&from));
        let part = |list| Part { table: (&from, Layout::dense(columns)), shape: [4, columns], list };
        put_rows(on.context(), &rows, 4, part(None), &mut found).unwrap();
        same(&found, &replaced, "replaced");
        // The second is named and not there, and a row that its table does not have is zeros.
        let (mut found, names) = (on.copy(&table), on.copy(&[9_u32, 1, 2, 3]));
        put_rows(on.context(), &rows, 4, part(Some(&names)), &mut found).unwrap();
        replaced[3 * columns..][..columns].fill(0.0);
        same(&found, &replaced, "replaced by those of a list");
        refused(clear_rows(on.context(), &rows, 6, columns, &mut found), "rows: ");
        refused(put_rows(on.context(), &rows, 6, part(None), &mut found), "rows: ");
        refused(put_rows(on.context(), &rows, 5, part(Some(&names)), &mut found), "the list of rows: ");
        refused(clear_empty(on.context(), &rows, 6, columns, &mut found), "slots: ");
        refused(clear_empty(on.context(), &rows, 5, columns * 5, &mut found), "rows: ");
    }
}

/// Slots as the tape takes them: of each a node row, some of them none, an edge row and a time difference.
struct Slots {
    node: Vec<u32>,
    edge: Vec<u32>,
    deltas: Vec<f32>,
    nodes: Vec<f32>,
    edges: Vec<f32>,
    w: Vec<f32>,
    b: Vec<f32>,
}

const NODE_ROWS: usize = 6;
const EDGE_ROWS: usize = 9;

impl Slots {
    fn new(draws: &mut Draws, count: usize, [node, edge, time]: [usize; 3]) -> Self {
        let nodes: Vec<u32> = (0..count)
            .map(|_| if draws.below(4) == 0 { u32::MAX } else { draws.below(NODE_ROWS) as u32 })
            .collect();
        // The edge of an empty slot may be anything.
        let number = |node: &u32| if *node == u32::MAX { 1_000 } else { draws.below(EDGE_ROWS) as u32 };
        Self {
            edge: nodes.iter().map(number).collect(),
            node: nodes,
            deltas: draws.floats(count, 1e3).iter().map(|delta| delta.abs()).collect(),
            nodes: draws.floats(NODE_ROWS * node, 1.0),
            edges: draws.floats(EDGE_ROWS * edge, 1.0),
            w: TimeEncoder::frequencies(time),
            b: draws.floats(time, 1.0),
        }
    }

    /// The rows, and the gradients of nodes, frequencies and phases.
    fn on_tape(&self, d: &[f32]) -> (Vec<f32>, Vec<Vec<f32>>) {
        let (node, edge) = (self.nodes.len() / NODE_ROWS, self.edges.len() / EDGE_ROWS);
        let time = self.w.len();
        let inputs = Inputs::new(&[("nodes", node, &self.nodes), ("w", time, &self.w), ("b", time, &self.b)]);
        inputs.run(d, &["nodes", "w", "b"], |tape, parameters| {
            let id = |name| parameters.find(name).unwrap();
            let nodes = tape.param(id("nodes"));
            tape.slot_rows(SlotRows {
                nodes,
                node: self.node.clone().into(),
                edges: Some((
                    Arc::new(Tensor::from_slice(&Device::Cpu, EDGE_ROWS, edge, &self.edges)),
                    self.edge.clone().into(),
                )),
                deltas: self.deltas.clone().into(),
                time: &TimeEncoder::Trained { w: id("w"), b: id("b") },
            })
        })
    }
}

#[test]
fn rows_of_slots_are_put_together_and_their_gradients_taken_apart_on_a_gpu() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(3);
    for (count, widths) in [(1, [1, 1, 1]), (90, [33, 5, 100]), (70, [100, 172, 33]), (20, [4, 0, 7])] {
        let slots = Slots::new(&mut draws, count, widths);
        let ([node, edge, time], width) = (widths, widths.iter().sum::<usize>());
        let d = draws.floats(count * width, 1.0);
        let (value, gradients) = slots.on_tape(&d);
        let (nodes, edges) = (on.copy(&slots.nodes), on.copy(&slots.edges));
        let (node_list, edge_list) = (on.copy(&slots.node), on.copy(&slots.edge));
        let (deltas, w, b) = (on.copy(&slots.deltas), on.copy(&slots.w), on.copy(&slots.b));
        let part = |table, list, rows, columns| Part {
            table: (table, Layout::dense(columns)),
            shape: [rows, columns],
            list: Some(list),
        };
        let parts = [part(&nodes, &node_list, NODE_ROWS, node), part(&edges, &edge_list, EDGE_ROWS, edge)];
        let times = SlotTimes { deltas: &deltas, w: &w, b: &b, columns: time };
        let mut out = on.room(count * width);
        slot_rows(on.context(), parts, times, count, &mut out).unwrap();
        if twin_fuses() {
            same(&out, &value, "rows of slots");
        }
        agree(&out, wide(&value), "rows of slots");

        let mut d = on.copy(&d);
        clear_empty(on.context(), &node_list, count, width, &mut d).unwrap();
        let inverse = InverseIndex::new(&slots.node, NODE_ROWS).sent(&CudaWork::new(cuda.clone()));
        let mut dx = on.room(NODE_ROWS * node);
        let (from, dense) = (Layout { first: 0, stride: width, step: 0 }, Layout::dense(node));
        scatter_add_rows(on.context(), &inverse, node, (&d, from), true, (&mut dx, dense)).unwrap();
        agree(&dx, wide(&gradients[0]), "gradient of nodes");
        let pieces = pieces_of(count);
        let mut partials = on.room(pieces * 2 * time);
        time_backward(
            on.context(),
            (&deltas, deltas.len()),
            (&w, &b),
            (&d, node + edge, width),
            &mut partials,
        )
        .unwrap();
        let sums = summed(&cuda, [pieces, 2 * time], &partials);
        agree(&sums, wide(&gradients[1..].concat()), "gradients of frequencies and phases");

        refused(slot_rows(on.context(), parts, times, count + 1, &mut out), "differences: ");
        let times = SlotTimes { columns: time + 1, ..times };
        refused(slot_rows(on.context(), parts, times, count, &mut out), "frequencies: ");
        let short = &mut on.room(count * width - 1);
        let times = SlotTimes { columns: time, ..times };
        refused(slot_rows(on.context(), parts, times, count, short), "results: ");
        let parts = [Part { shape: [NODE_ROWS + 1, node], ..parts[0] }, parts[1]];
        refused(slot_rows(on.context(), parts, times, count, &mut out), "the table: ");
    }
}
