//! Checks of the operations over groups of rows and rows by index.

use std::sync::Arc;

use super::reference::{Matrix, time_encoding};
use super::{Check, random, tensor};
use crate::device::{Device, rng};
use crate::nn::{
    Gradients, Groups, Mode, Parameters, Reduce, SlotAttention, SlotRows, Tape, Tensor, TimeEncoder, Var,
};

/// The rows of each group, and the groups as the tape takes them.
fn groups() -> [(Vec<Vec<usize>>, Groups, usize); 2] {
    let offsets = vec![0u32, 3, 3, 4, 11];
    let runs = offsets.windows(2).map(|w| (w[0] as usize..w[1] as usize).collect()).collect();
    let counts = vec![2u32, 0, 3, 1];
    let slots = counts.iter().enumerate().map(|(g, n)| (g * 3..g * 3 + *n as usize).collect()).collect();
    [
        (runs, Groups::Offsets(Arc::new(offsets)), 11),
        (slots, Groups::Slots { slots: 3, counts: Arc::new(counts) }, 12),
    ]
}

fn reduced(x: &Matrix, members: &[Vec<usize>], reduce: Reduce) -> Matrix {
    Matrix::from_fn(members.len(), x.cols, |g, c| {
        let column = || members[g].iter().map(|r| x.at(*r, c));
        match reduce {
            _ if members[g].is_empty() => 0.0,
            Reduce::Sum => column().sum(),
            Reduce::Mean => column().sum::<f64>() / members[g].len() as f64,
        }
    })
}

#[test]
fn sums_and_means_of_groups() {
    for (members, groups, rows) in groups() {
        for reduce in [Reduce::Sum, Reduce::Mean] {
            for cols in [1, 5, 39] {
                Check {
                    name: "reduce",
                    inputs: &[(rows, cols)],
                    ours: &|t, p| {
                        let x = t.param(p[0]);
                        t.reduce(x, &groups, reduce)
                    },
                    reference: &|m| reduced(&m[0], &members, reduce),
                }
                .run();
            }
        }
    }
}

#[test]
fn a_gradient_is_added_to_what_has_flowed_already() {
    for (members, groups, rows) in groups() {
        Check {
            name: "two reductions of one value",
            inputs: &[(rows, 3)],
            ours: &|t, p| {
                let x = t.param(p[0]);
                let x = t.scale(x, 2.0);
                let (a, b) = (t.reduce(x, &groups, Reduce::Mean), t.reduce(x, &groups, Reduce::Sum));
                t.add(a, b)
            },
            reference: &|m| {
                let x = m[0].map(|v| 2.0 * v);
                let (a, b) = (reduced(&x, &members, Reduce::Mean), reduced(&x, &members, Reduce::Sum));
                Matrix::from_fn(a.rows, a.cols, |r, c| a.at(r, c) + b.at(r, c))
            },
        }
        .run();
    }
}

#[test]
fn slot_rows_side_by_side() {
    let none = u32::MAX;
    let (node, edge) = (vec![1u32, 1, none, 0, 2, none, 1], vec![0u32, 1, none, 1, 0, 0, 0]);
    let deltas = vec![0.0f32, 1.5, 0.0, 2.0, 7.0, 3.0, 0.25];
    let edges = random(2, 3, 50);
    Check {
        name: "slot_rows",
        inputs: &[(3, 2), (1, 4), (1, 4)],
        ours: &|t, p| {
            let nodes = t.param(p[0]);
            t.slot_rows(SlotRows {
                nodes,
                node: node.clone().into(),
                edges: Some((Arc::new(tensor(&edges)), edge.clone().into())),
                deltas: deltas.clone().into(),
                time: &TimeEncoder::Trained { w: p[1], b: p[2] },
            })
        },
        reference: &|m| {
            let phi = time_encoding(&deltas, &m[1], &m[2]);
            Matrix::from_fn(7, 9, |r, c| match c {
                _ if node[r] == none => 0.0,
                0..2 => m[0].at(node[r] as usize, c),
                2..5 => edges.at(edge[r] as usize, c - 2),
                _ => phi.at(r, c - 5),
            })
        },
    }
    .run();
}

#[test]
fn attention_over_slots_with_keys_and_values() {
    let counts = [3u32, 0, 1, 2];
    for (heads, width) in [(1, 3), (2, 4), (3, 17)] {
        let (cols, k) = (heads * width, 3);
        Check {
            name: "slot_attention",
            inputs: &[(4, cols), (4 * k, cols), (4 * k, cols)],
            ours: &|t, p| {
                let [q, k, v] = [0, 1, 2].map(|i| t.param(p[i]));
                t.slot_attention(SlotAttention { q, k, v, counts: Arc::new(counts.to_vec()), heads })
            },
            reference: &|m| {
                Matrix::from_fn(4, cols, |s, c| {
                    let columns = c / width * width..(c / width + 1) * width;
                    let rows = || s * k..s * k + counts[s] as usize;
                    let dot = |r: usize| columns.clone().map(|c| m[0].at(s, c) * m[1].at(r, c)).sum::<f64>();
                    let score = |r| (dot(r) / (width as f64).sqrt()).exp();
                    let sum: f64 = rows().map(score).sum();
                    rows().map(|r| score(r) / sum * m[2].at(r, c)).sum()
                })
            },
        }
        .run();
    }
}

#[test]
fn a_table_beyond_the_caches_is_read_as_a_small_one() {
    let (rows, cols) = (70_000usize, 100);
    let table: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let mut parameters = Parameters::new();
    let id = parameters.add("table", Tensor::from_vec(&Device::Cpu, rows, cols, table));
    let index: Vec<u32> = (0..80_000u64).map(|i| rng::below([9, i, 0, 0], rows as u32)).collect();
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
    let x = tape.param(id);
    let y = tape.gather(x, index.clone());
    let offsets: Vec<u32> = (0..=8_000).map(|g| g * 10).collect();
    let sums = tape.reduce(y, &Groups::Offsets(Arc::new(offsets)), Reduce::Sum);
    for (row, i) in tape.value(y).data().chunks(cols).zip(&index) {
        assert_eq!(row, parameters.get(id).row(*i as usize));
    }
    let mut d = tape.take(8_000, cols);
    d.data_mut().fill(2.0);
    tape.backward_from(sums, d, &mut gradients);
    let mut readers = vec![0u32; rows];
    index.iter().for_each(|i| readers[*i as usize] += 1);
    for (row, readers) in gradients.get(id).data().chunks(cols).zip(&readers) {
        assert!(row.iter().all(|v| *v == 2.0 * *readers as f32));
    }
}

/// The bits of results and gradients of every operation here, at a size that is cut into pieces.
fn bits() -> Vec<u32> {
    let (rows, cols) = (30_000, 20);
    let mut parameters = Parameters::new();
    let values = random(rows, cols, 8);
    let id = parameters.add("x", tensor(&values));
    let index: Vec<u32> = (0..rows as u64).map(|i| rng::below([10, i, 0, 0], 2_000)).collect();
    let offsets = Groups::Offsets(Arc::new((0..=3_000).map(|g| g * 10).collect()));
    let slots = Groups::Slots { slots: 10, counts: Arc::new((0..3_000).map(|g| g % 11).collect()) };
    type Op<'a> = Box<dyn Fn(&mut Tape<'_>, Var) -> Var + 'a>;
    let ops: [Op<'_>; 4] = [
        Box::new(|t, x| t.reduce(x, &offsets, Reduce::Mean)),
        Box::new(|t, x| t.reduce(x, &slots, Reduce::Sum)),
        Box::new(|t, x| t.gather(x, index.repeat(3))),
        Box::new(|t, x| {
            let q = t.rows(x, 0..3_000);
            let counts = Arc::new((0..3_000).map(|g| g % 11).collect());
            t.slot_attention(SlotAttention { q, k: x, v: x, counts, heads: 2 })
        }),
    ];
    let mut bits = Vec::new();
    for op in &ops {
        let mut gradients = Gradients::new(&Device::Cpu, &parameters);
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let x = tape.param(id);
        let y = op(&mut tape, x);
        let (rows, cols) = tape.value(y).shape();
        let d = tensor(&random(rows, cols, 11));
        bits.extend(tape.value(y).data().iter().map(|v| v.to_bits()));
        tape.backward_from(y, d, &mut gradients);
        bits.extend(gradients.get(id).data().iter().map(|v| v.to_bits()));
    }
    bits
}

#[test]
fn the_same_bits_at_any_number_of_threads() {
    let with = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(bits);
    let one = with(1);
    for threads in [2, 5] {
        assert!(one == with(threads), "{threads} threads differ from one");
    }
}

#[test]
fn gradients_that_start_over_are_overwritten_and_the_others_become_zero() {
    let mut parameters = Parameters::new();
    let used = parameters.add("used", Tensor::from_vec(&Device::Cpu, 1, 1, vec![2.0]));
    let other = parameters.add("other", Tensor::from_vec(&Device::Cpu, 1, 1, vec![2.0]));
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    for _ in 0..2 {
        gradients.get_mut(used).data_mut()[0] = 7.0;
        gradients.get_mut(other).data_mut()[0] = 7.0;
        gradients.start_over();
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let x = tape.param(used);
        let y = tape.scale(x, 3.0);
        tape.backward(y, &mut gradients);
        assert_eq!((gradients.get(used).data(), gradients.get(other).data()), (&[3.0][..], &[0.0][..]));
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let x = tape.param(used);
        let y = tape.scale(x, 3.0);
        tape.backward(y, &mut gradients);
        assert_eq!(gradients.get(used).data(), [6.0], "without that they are added to");
    }
}
