//! Checks of the folded attention against the unfolded definition.

use super::reference::{self, Matrix, Slots};
use super::{Check, random, tensor};
use crate::device::Device;
use crate::nn::{
    Gradients, InverseIndex, Mode, ParamId, Parameters, Tape, TemporalAttention, Tensor, TimeEncoder, Var,
};

const NONE: u32 = u32::MAX;

struct Layer {
    queries: Option<Vec<u32>>,
    slots: Vec<u32>,
    deltas: Vec<f32>,
    edges: Option<Matrix>,
    edge_slots: Option<Vec<u32>>,
    heads: usize,
    dropout: f32,
    /// What follows in every query row.
    tail: Vec<f32>,
}

impl Layer {
    /// Inputs: query, nodes, w_q, w_k, w_v, w, b. Where the readers of nodes are `listed` they come with the rest.
    fn ours(&self, tape: &mut Tape<'_>, p: &[ParamId], listed: bool) -> Var {
        let (query, nodes) = (tape.param(p[0]), tape.param(p[1]));
        let readers = InverseIndex::new(&self.slots, tape.value(nodes).rows());
        tape.temporal_attention(TemporalAttention {
            tail: self.tail.clone(),
            query,
            queries: self.queries.clone().map(Into::into),
            nodes,
            slots: self.slots.clone().into(),
            readers: listed.then(|| readers.into()),
            deltas: self.deltas.clone().into(),
            edge_rows: self.edges.as_ref().map(|edges| tensor(edges).into()),
            edge_slots: self.edge_slots.clone().map(Into::into),
            w_q: p[2],
            w_k: p[3],
            w_v: p[4],
            heads: self.heads,
            time: &TimeEncoder::Trained { w: p[5], b: p[6] },
            dropout: self.dropout,
            key: [7, 8, 9],
        })
    }

    fn reference(&self, m: &[Matrix]) -> Matrix {
        let slots = Slots {
            slots: &self.slots,
            deltas: &self.deltas,
            edges: self.edges.as_ref(),
            edge_slots: self.edge_slots.as_deref(),
            heads: self.heads,
            dropout: (self.dropout, [7, 8, 9]),
        };
        let query = match &self.queries {
            Some(of) => Matrix::from_fn(of.len(), m[0].cols, |r, c| m[0].at(of[r] as usize, c)),
            None => m[0].clone(),
        };
        let columns = query.cols + self.tail.len();
        let query = Matrix::from_fn(query.rows, columns, |r, c| match c.checked_sub(query.cols) {
            Some(c) => f64::from(self.tail[c]),
            None => query.at(r, c),
        });
        reference::attention(&query, &m[1], [&m[2], &m[3], &m[4]], (&m[5], &m[6]), &slots)
    }

    /// Checks with `model` columns, queries of 3, node rows of `node` and encodings of `time` columns.
    fn check(&self, name: &str, queries: usize, model: usize, node: usize, time: usize) {
        let rows = self.slots.iter().filter(|s| **s != NONE).max().map_or(1, |s| *s as usize + 2);
        let width = node + time + self.edges.as_ref().map_or(0, |e| e.cols);
        let shapes = [
            (queries, 3),
            (rows, node),
            (model, 3 + self.tail.len()),
            (model, width),
            (model, width),
            (1, time),
            (1, time),
        ];
        Check {
            name,
            inputs: &shapes,
            ours: &|t, p| self.ours(t, p, false),
            reference: &|m| self.reference(m),
        }
        .run();
        let [listed, not_listed] = [true, false].map(|listed| self.gradients(&shapes, listed));
        assert_eq!(listed, not_listed, "{name}: readers that are listed change no bit");
    }

    /// The gradients of random inputs, bit for bit.
    fn gradients(&self, shapes: &[(usize, usize)], listed: bool) -> Vec<Vec<u32>> {
        let mut parameters = Parameters::new();
        let inputs = shapes.iter().enumerate();
        let inputs = inputs.map(|(i, s)| parameters.add(i, tensor(&random(s.0, s.1, 70 + i as u64))));
        let ids: Vec<ParamId> = inputs.collect();
        let mut gradients = Gradients::new(&Device::Cpu, &parameters);
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let y = self.ours(&mut tape, &ids, listed);
        let targets = vec![0.25; tape.value(y).data().len()];
        let loss = tape.bce_with_logits(y, &targets);
        tape.backward(loss, &mut gradients);
        let bits = |id: &ParamId| gradients.get(*id).data().iter().map(|value| value.to_bits()).collect();
        ids.iter().map(bits).collect()
    }
}

fn deltas(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 * 0.7).collect()
}

#[test]
fn full_and_partly_empty_slots() {
    let slots = vec![0, 1, 2, NONE, 2, NONE, NONE, NONE, NONE, 3, 3, 0];
    let plain = Layer {
        queries: None,
        slots,
        deltas: deltas(12),
        edges: None,
        edge_slots: None,
        heads: 2,
        dropout: 0.0,
        tail: Vec::new(),
    };
    plain.check("attention without edges", 4, 4, 2, 3);
    let edges = Some(random(12, 2, 77));
    let with_edges = Layer { edges, ..plain };
    with_edges.check("attention with an edge row per slot", 4, 4, 2, 3);
    let edges = Some(random(3, 17, 78));
    let at = vec![0, 1, 2, NONE, 0, 0, 0, 9, 9, 2, 2, 1];
    let shared = Layer { edges, edge_slots: Some(at), heads: 1, ..with_edges };
    shared.check("attention with shared edge rows", 4, 4, 14, 2);
    let dropping = Layer { heads: 3, dropout: 0.4, ..shared };
    dropping.check("attention with dropout", 4, 6, 2, 3);
    let shared = Layer { queries: Some(vec![1, 0, 1, 1]), heads: 2, dropout: 0.0, ..dropping };
    shared.check("attention of seeds that share queries", 3, 6, 2, 3);
    let with_tail = Layer { tail: vec![0.5, -2.0], ..shared };
    with_tail.check("attention of queries with a constant tail", 3, 6, 2, 3);
}

#[test]
fn one_seed_one_slot_one_column() {
    let one = Layer {
        queries: None,
        slots: vec![0],
        deltas: vec![2.0],
        edges: None,
        edge_slots: None,
        heads: 1,
        dropout: 0.0,
        tail: Vec::new(),
    };
    one.check("attention over one slot", 1, 1, 1, 1);
    let many = Layer { slots: vec![1; 40], deltas: deltas(40), ..one };
    many.check("attention of 40 seeds over one slot each", 40, 2, 3, 1);
}

#[test]
fn seeds_without_neighbors_get_zeros_and_give_no_gradient() {
    let none = Layer {
        queries: None,
        slots: vec![NONE; 6],
        deltas: vec![3.0; 6],
        edges: None,
        edge_slots: None,
        heads: 2,
        dropout: 0.0,
        tail: Vec::new(),
    };
    let mut parameters = Parameters::new();
    let shapes = [(3, 3), (1, 2), (4, 3), (4, 4), (4, 4), (1, 2), (1, 2)];
    let ids: Vec<ParamId> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| parameters.add(i, tensor(&random(s.0, s.1, i as u64))))
        .collect();
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    for slots in [vec![NONE; 6], vec![]] {
        let none = Layer {
            queries: None,
            tail: Vec::new(),
            deltas: vec![3.0; slots.len()],
            slots,
            edges: None,
            edge_slots: None,
            ..none
        };
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let y = none.ours(&mut tape, &ids, true);
        assert!(tape.value(y).data().iter().all(|v| *v == 0.0));
        let loss = tape.bce_with_logits(y, &[1.0; 12]);
        tape.backward(loss, &mut gradients);
        assert_eq!(gradients.norm(), 0.0);
    }
}

#[test]
fn no_seeds_at_all() {
    let mut parameters = Parameters::new();
    let shapes = [(0, 3), (1, 2), (4, 3), (4, 4), (4, 4), (1, 2), (1, 2)];
    let add = |(i, s): (usize, &(usize, usize))| parameters.add(i, Tensor::zeros(&Device::Cpu, s.0, s.1));
    let ids: Vec<ParamId> = shapes.iter().enumerate().map(add).collect();
    let none = Layer {
        queries: None,
        slots: vec![],
        deltas: vec![],
        edges: None,
        edge_slots: None,
        heads: 2,
        dropout: 0.0,
        tail: Vec::new(),
    };
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Inference);
    let y = none.ours(&mut tape, &ids, true);
    assert_eq!(tape.value(y).shape(), (0, 4));
}
