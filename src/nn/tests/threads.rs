//! A step of realistic size gives the same bits at any number of threads.

use crate::device::{Device, rng};
use crate::nn::{
    Adam, AdamOptions, Gradients, GruParams, Mode, Parameters, SlotMixing, Tape, TapePool, TemporalAttention,
    TimeEncoder, init,
};

const SEEDS: usize = 333;
const NODES: usize = 700;
const SLOTS: usize = 10;
const WIDTH: usize = 50;

fn mixing(p: &mut Parameters) -> SlotMixing {
    let mut part = |rows, cols, n| {
        p.add(format!("mixing {n}"), init::uniform(&Device::Cpu, rows, cols, 1.0, [14, n, 0]))
    };
    SlotMixing {
        gamma: part(1, 9, 0),
        beta: part(1, 9, 1),
        w_a: part(4, 9, 2),
        b_a: part(1, 4, 3),
        w_b: part(9, 4, 4),
        b_b: part(1, 9, 5),
        eps: 1e-5,
        dropout: 0.1,
        key: [15, 0, 0],
    }
}

/// Two training steps; all weights as bits.
fn steps() -> Vec<u32> {
    let device = Device::Cpu;
    let mut p = Parameters::new();
    let gates = [(3 * WIDTH, 2 * WIDTH), (3 * WIDTH, WIDTH), (1, 3 * WIDTH), (1, 3 * WIDTH)];
    let part = |i: usize| init::uniform(&device, gates[i].0, gates[i].1, 0.1, [1, i as u64, 0]);
    let [w_ih, w_hh, b_ih, b_hh] = [0, 1, 2, 3].map(part);
    let gru = GruParams {
        w_ih: p.add("w_ih", w_ih),
        w_hh: p.add("w_hh", w_hh),
        b_ih: p.add("b_ih", b_ih),
        b_hh: p.add("b_hh", b_hh),
    };
    let qkv = [WIDTH, 2 * WIDTH, 2 * WIDTH];
    let [w_q, w_k, w_v] =
        [0, 1, 2].map(|i| p.add(format!("w{i}"), init::uniform(&device, 100, qkv[i], 0.2, [2, i as u64, 0])));
    let gamma = p.add("gamma", init::uniform(&device, 1, 100, 1.0, [6, 0, 0]));
    let beta = p.add("beta", init::uniform(&device, 1, 100, 1.0, [7, 0, 0]));
    let (w, b) = init::torch_linear(&device, 1, 100 + WIDTH, [3, 0, 0]);
    let (w, b) = (p.add("w", w), p.add("b", b));
    let frequencies = init::uniform(&device, 1, WIDTH, 1.0, [8, 0, 0]);
    let phases = init::uniform(&device, 1, WIDTH, 1.0, [9, 0, 0]);
    let time = TimeEncoder::Trained { w: p.add("frequencies", frequencies), b: p.add("phases", phases) };
    let mixing = mixing(&mut p);
    let mut adam = Adam::new(&device, &p, AdamOptions::default());
    let (mut gradients, mut pool) = (Gradients::new(&device, &p), TapePool::new());
    for step in 0..2u64 {
        gradients.start_over();
        let mut tape = Tape::pooled(&device, &p, Mode::Train, &mut pool);
        let x = tape.constant(init::uniform(&device, NODES, 2 * WIDTH, 1.0, [4, step, 0]));
        let h = tape.constant(init::uniform(&device, NODES, WIDTH, 1.0, [5, step, 0]));
        let nodes = tape.gru_cell(x, h, &gru);
        let slot = |i| match rng::below([10, step, i as u64, 0], NODES as u32 + 100) {
            n if n < NODES as u32 => n,
            _ => u32::MAX,
        };
        let query = tape.gather_distinct(nodes, (0..SEEDS).map(|i| i as u32 % 50).collect());
        let y = tape.temporal_attention(TemporalAttention {
            tail: Vec::new(),
            query: query.x,
            queries: query.rows.clone(),
            nodes,
            slots: (0..SEEDS * SLOTS).map(slot).collect::<Vec<_>>().into(),
            readers: None,
            deltas: (0..SEEDS * SLOTS).map(|i| i as f32).collect::<Vec<_>>().into(),
            edge_rows: None,
            edge_slots: None,
            w_q,
            w_k,
            w_v,
            heads: 2,
            time: &time,
            dropout: 0.1,
            key: [11, step, 0],
        });
        let y = tape.mix_slots(y, mixing);
        let y = tape.gelu(y, 0.1, [13, step, 0]);
        let y = tape.layer_norm(y, gamma, beta, 1e-5);
        let y = tape.dropout(y, 0.1, [12, step, 0]);
        let y = tape.linear_relu_joined(vec![y.into(), query], w, b);
        let targets: Vec<f32> = (0..SEEDS).map(|i| (i % 2) as f32).collect();
        let loss = tape.bce_with_logits(y, &targets);
        tape.backward(loss, &mut gradients);
        drop(tape);
        assert!(gradients.is_finite() && gradients.norm() > 0.0);
        adam.step(&mut p, &gradients);
    }
    p.iter().flat_map(|(_, t)| t.data()).map(|v| v.to_bits()).collect()
}

#[test]
fn the_same_bits_at_any_number_of_threads() {
    let with = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(steps);
    let one = with(1);
    for threads in [2, 3, 8] {
        assert!(one == with(threads), "{threads} threads differ from one");
    }
}
