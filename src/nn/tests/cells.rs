//! Checks of everything but attention.

use super::reference::{self, Matrix};
use super::{Check, tensor};
use crate::device::Device;
use crate::nn::cpu::dropout;
use crate::nn::{
    Adam, AdamOptions, Gradients, GruParams, Mode, Parameters, RnnParams, StorageError, Tape, Tensor,
    TimeEncoder, Var,
};

#[test]
fn linear_layers() {
    for rows in [1, 5] {
        Check {
            name: "linear",
            inputs: &[(rows, 3), (4, 3), (1, 4)],
            ours: &|t, p| {
                let x = t.param(p[0]);
                t.linear(x, p[1], Some(p[2]))
            },
            reference: &|m| reference::linear(&m[0], &m[1], Some(&m[2])),
        }
        .run();
    }
    Check {
        name: "two linear layers",
        inputs: &[(5, 3), (4, 3), (1, 4), (2, 4)],
        ours: &|t, p| {
            let x = t.param(p[0]);
            let y = t.linear(x, p[1], Some(p[2]));
            let y = t.relu(y);
            t.linear(y, p[3], None)
        },
        reference: &|m| {
            let y = reference::linear(&m[0], &m[1], Some(&m[2])).map(|v| v.max(0.0));
            reference::linear(&y, &m[3], None)
        },
    }
    .run();
}

#[test]
fn element_by_element() {
    Check {
        name: "add, relu, scale",
        inputs: &[(3, 4), (3, 4)],
        ours: &|t, p| {
            let (x, y) = (t.param(p[0]), t.param(p[1]));
            let sum = t.add(x, y);
            let twice = t.add(sum, x);
            let positive = t.relu(twice);
            t.scale(positive, -1.5)
        },
        reference: &|m| Matrix::from_fn(3, 4, |r, c| -1.5 * (2.0 * m[0].at(r, c) + m[1].at(r, c)).max(0.0)),
    }
    .run();
    let key = [4, 5, 6];
    Check {
        name: "dropout",
        inputs: &[(7, 5)],
        ours: &|t, p| {
            let x = t.param(p[0]);
            t.dropout(x, 0.3, key)
        },
        reference: &|m| {
            Matrix::from_fn(7, 5, |r, c| {
                m[0].at(r, c) * f64::from(dropout::factor(0.3, key, (r * 5 + c) as u64))
            })
        },
    }
    .run();
}

#[test]
fn columns_and_rows() {
    Check {
        name: "concat and rows",
        inputs: &[(4, 2), (4, 3), (4, 1)],
        ours: &|t, p| {
            let parts = [t.param(p[0]), t.param(p[1]), t.param(p[0]), t.param(p[2])];
            let y = t.concat(&parts);
            let (top, all) = (t.rows(y, 1..3), t.rows(y, 2..4));
            t.add(top, all)
        },
        reference: &|m| {
            let wide = |r: usize, c: usize| match c {
                0..2 => m[0].at(r, c),
                2..5 => m[1].at(r, c - 2),
                5..7 => m[0].at(r, c - 5),
                _ => m[2].at(r, 0),
            };
            Matrix::from_fn(2, 8, |r, c| wide(r + 1, c) + wide(r + 2, c))
        },
    }
    .run();
}

#[test]
fn rows_by_index() {
    let index = [3u32, 0, 3, 3, 1];
    Check {
        name: "gather, twice into one value",
        inputs: &[(5, 3)],
        ours: &|t, p| {
            let x = t.param(p[0]);
            let x = t.scale(x, 1.0);
            let a = t.gather(x, index.to_vec());
            let b = t.gather(x, vec![4, 4, 2, 1, 0]);
            t.add(a, b)
        },
        reference: &|m| {
            let other = [4, 4, 2, 1, 0];
            Matrix::from_fn(5, 3, |r, c| m[0].at(index[r] as usize, c) + m[0].at(other[r], c))
        },
    }
    .run();
    Check {
        name: "overlay_rows",
        inputs: &[(5, 3), (2, 3)],
        ours: &|t, p| {
            let (base, rows) = (t.param(p[0]), t.param(p[1]));
            t.overlay_rows(base, vec![3, 1], rows)
        },
        reference: &|m| {
            Matrix::from_fn(5, 3, |r, c| match r {
                3 => m[1].at(0, c),
                1 => m[1].at(1, c),
                _ => m[0].at(r, c),
            })
        },
    }
    .run();
}

#[test]
fn rows_that_many_places_share() {
    let index = vec![3u32, 0, 3, 3, 1];
    Check {
        name: "add_gathered",
        inputs: &[(5, 3), (4, 3)],
        ours: &|t, p| {
            let (x, table) = (t.param(p[0]), t.param(p[1]));
            t.add_gathered(x, table, index.clone().into())
        },
        reference: &|m| Matrix::from_fn(5, 3, |r, c| m[0].at(r, c) + m[1].at(index[r] as usize, c)),
    }
    .run();
    // Rows that come twice, rows that come once each, and such that stand one behind the other in both ways.
    for other in [vec![2u32, 2, 0, 2, 0], vec![4, 3, 2, 1, 0], vec![1, 2, 3, 2, 1], vec![0, 1, 2, 3, 4]] {
        Check {
            name: "linear_relu_joined",
            inputs: &[(4, 3), (5, 2), (5, 4), (6, 9), (1, 6)],
            ours: &|t, p| {
                let (x, y, z) = (t.param(p[0]), t.param(p[1]), t.param(p[2]));
                let parts = vec![
                    t.distinct_columns(x, index.clone()),
                    y.into(),
                    t.distinct_columns(z, other.clone()),
                ];
                t.linear_relu_joined(parts, p[3], p[4])
            },
            reference: &|m| {
                let joined = Matrix::from_fn(5, 9, |r, c| match c {
                    0..3 => m[0].at(index[r] as usize, c),
                    3..5 => m[1].at(r, c - 3),
                    _ => m[2].at(other[r] as usize, c - 5),
                });
                reference::linear(&joined, &m[3], Some(&m[4])).map(|v| v.max(0.0))
            },
        }
        .run();
    }
}

#[test]
fn ranges_of_rows_are_read_where_they_are() {
    // Both parts, and both columns, are of one value that is no parameter; the ranges overlap and leave rows out.
    Check {
        name: "linear_relu_joined of ranges",
        inputs: &[(7, 3), (4, 6), (1, 4)],
        ours: &|t, p| {
            let x = t.param(p[0]);
            let x = t.scale(x, 2.0);
            let parts = [vec![2, 3, 4], vec![4, 5, 4]].map(|rows| t.distinct_columns(x, rows));
            assert_eq!(parts.each_ref().map(|part| part.range.clone()), [Some(2..5), Some(4..6)]);
            t.linear_relu_joined(parts.into(), p[1], p[2])
        },
        reference: &|m| {
            let joined = Matrix::from_fn(3, 6, |r, c| match c {
                0..3 => 2.0 * m[0].at(2 + r, c),
                _ => 2.0 * m[0].at([4, 5, 4][r], c - 3),
            });
            reference::linear(&joined, &m[1], Some(&m[2])).map(|v| v.max(0.0))
        },
    }
    .run();
    Check {
        name: "concat_rows",
        inputs: &[(7, 3), (3, 2)],
        ours: &|t, p| {
            let (x, y) = (t.param(p[0]), t.param(p[1]));
            let x = t.scale(x, 2.0);
            t.concat_rows(vec![(x, 1..4), (y, 0..3), (x, 3..6)])
        },
        reference: &|m| {
            Matrix::from_fn(3, 8, |r, c| match c {
                0..3 => 2.0 * m[0].at(1 + r, c),
                3..5 => m[1].at(r, c - 3),
                _ => 2.0 * m[0].at(3 + r, c - 5),
            })
        },
    }
    .run();
    Check {
        name: "overlay_constant",
        inputs: &[(2, 3)],
        ours: &|t, p| {
            let rows = t.param(p[0]);
            let base = Tensor::from_vec(&Device::Cpu, 4, 3, (0..12).map(|i| i as f32).collect());
            t.overlay_constant(base, vec![3, 1], rows)
        },
        reference: &|m| {
            Matrix::from_fn(4, 3, |r, c| match r {
                3 => m[0].at(0, c),
                1 => m[0].at(1, c),
                _ => (3 * r + c) as f64,
            })
        },
    }
    .run();
}

#[test]
fn distinct_rows_stand_in_order_of_first_appearance() {
    let parameters = Parameters::new();
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Inference);
    let x = tape.constant(Tensor::from_vec(&Device::Cpu, 3, 1, vec![5.0, 6.0, 7.0]));
    let twice = tape.gather_distinct(x, vec![2, 0, 2]);
    assert_eq!(tape.value(twice.x).data(), &[7.0, 5.0]);
    assert_eq!(twice.rows.as_deref(), Some(&vec![0, 1, 0]));
    let once = tape.gather_distinct(x, vec![2, 0]);
    assert_eq!((tape.value(once.x).data(), once.rows), (&[7.0, 5.0][..], None));
    let none = tape.gather_distinct(x, vec![]);
    assert_eq!((tape.value(none.x).shape(), none.rows), ((0, 1), None));
    let ranges = [vec![1, 2, 1], vec![0, 1], vec![], vec![1, 0]].map(|index| tape.distinct_columns(x, index));
    assert_eq!(ranges.map(|columns| columns.range), [Some(1..3), Some(0..2), Some(0..0), None]);
}

#[test]
fn overlay_over_a_constant_and_nothing() {
    let mut parameters = Parameters::new();
    let rows = parameters.add("rows", Tensor::from_vec(&Device::Cpu, 1, 2, vec![5.0, 6.0]));
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
    let base = tape.constant(Tensor::from_vec(&Device::Cpu, 2, 2, vec![1.0, 2.0, 3.0, 4.0]));
    let rows = tape.param(rows);
    let none = tape.rows(rows, 0..0);
    let same = tape.overlay_rows(base, vec![], none);
    assert_eq!(tape.value(same).data(), &[1.0, 2.0, 3.0, 4.0]);
    let over = tape.overlay_rows(same, vec![0], rows);
    assert_eq!(tape.value(over).data(), &[5.0, 6.0, 3.0, 4.0]);
}

#[test]
fn layer_norms() {
    for cols in [2, 5] {
        Check {
            name: "layer_norm",
            inputs: &[(4, cols), (1, cols), (1, cols)],
            ours: &|t, p| {
                let x = t.param(p[0]);
                t.layer_norm(x, p[1], p[2], 1e-2)
            },
            reference: &|m| reference::layer_norm(&m[0], &m[1], &m[2], f64::from(1e-2f32)),
        }
        .run();
    }
}

#[test]
fn learned_time_encodings() {
    let deltas = [0.0f32, 0.5, 3.0, 7.25];
    Check {
        name: "time_encoding",
        inputs: &[(1, 3), (1, 3)],
        ours: &|t, p| t.time_encoding(&deltas, &TimeEncoder::Trained { w: p[0], b: p[1] }),
        reference: &|m| reference::time_encoding(&deltas, &m[0], &m[1]),
    }
    .run();
}

#[test]
fn time_encodings_see_seconds_in_any_unit() {
    let seconds = [0.0f32, 0.5, 7.25, 3_600.0, 604_800.0];
    let parameters = Parameters::new();
    let encoded = |ticks: u32| {
        let deltas = seconds.map(|delta| (f64::from(delta) * f64::from(ticks)) as f32);
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Inference);
        let rows = tape.time_encoding(&deltas, &TimeEncoder::of_ticks(20, ticks));
        tape.value(rows).data().to_vec()
    };
    let by_second = encoded(1);
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Inference);
    let usual = tape.time_encoding(&seconds, &TimeEncoder::fixed(20));
    assert_eq!(tape.value(usual).data(), by_second);
    for ticks in [1_000, 1_000_000, 1_000_000_000] {
        for (i, (found, expected)) in encoded(ticks).iter().zip(&by_second).enumerate() {
            // The product of a frequency and a difference is rounded to 24 bits.
            let angle = f64::from(seconds[i / 20]) * 10f64.powf(-9.0 * (i % 20) as f64 / 19.0);
            assert!(
                (f64::from(*found - *expected)).abs() < 1e-6 + angle * 2e-7,
                "{ticks} {i}: {found} {expected}"
            );
        }
    }
}

#[test]
fn recurrent_cells() {
    for rows in [1, 4] {
        Check {
            name: "gru_cell",
            inputs: &[(rows, 5), (rows, 3), (9, 5), (9, 3), (1, 9), (1, 9)],
            ours: &|t, p| {
                let (x, h) = (t.param(p[0]), t.param(p[1]));
                t.gru_cell(x, h, &GruParams { w_ih: p[2], w_hh: p[3], b_ih: p[4], b_hh: p[5] })
            },
            reference: &|m| reference::gru(&m[0], &m[1], &m[2..]),
        }
        .run();
        Check {
            name: "gru_cell_joined",
            inputs: &[(rows, 3), (rows, 2), (9, 5), (9, 3), (1, 9), (1, 9)],
            ours: &|t, p| {
                let (h, rest) = (t.param(p[0]), t.param(p[1]));
                let x = t.concat(&[h, rest]);
                t.gru_cell_joined(x, h, &GruParams { w_ih: p[2], w_hh: p[3], b_ih: p[4], b_hh: p[5] })
            },
            reference: &|m| {
                let joined = |r, c: usize| if c < 3 { m[0].at(r, c) } else { m[1].at(r, c - 3) };
                reference::gru(&Matrix::from_fn(m[0].rows, 5, joined), &m[0], &m[2..])
            },
        }
        .run();
        Check {
            name: "rnn_cell",
            inputs: &[(rows, 5), (rows, 3), (3, 5), (3, 3), (1, 3), (1, 3)],
            ours: &|t, p| {
                let (x, h) = (t.param(p[0]), t.param(p[1]));
                t.rnn_cell(x, h, &RnnParams { w_ih: p[2], w_hh: p[3], b_ih: p[4], b_hh: p[5] })
            },
            reference: &|m| reference::rnn(&m[0], &m[1], &m[2..]),
        }
        .run();
    }
}

#[test]
fn a_loss_of_ones_and_zeros_is_the_sum_of_both_means() {
    for ones in [0, 3, 7] {
        let mean = |m: &Matrix, rows: std::ops::Range<usize>, target: f64| match rows.len() {
            0 => 0.0,
            count => {
                let part = Matrix::from_fn(count, 1, |r, _| m.at(rows.start + r, 0));
                reference::bce(&part, &Matrix::from_fn(count, 1, |_, _| target))
            }
        };
        Check {
            name: "pair_loss",
            inputs: &[(7, 1)],
            ours: &|t, p| {
                let x = t.param(p[0]);
                t.pair_loss(x, ones)
            },
            reference: &|m| {
                Matrix::from_fn(1, 1, |_, _| mean(&m[0], 0..ones, 1.0) + mean(&m[0], ones..7, 0.0))
            },
        }
        .run();
    }
    let mut parameters = Parameters::new();
    let x = parameters.add("x", Tensor::from_vec(&Device::Cpu, 4, 1, vec![0.3, -1.7, 88.0, -0.01]));
    let run = |loss: &dyn Fn(&mut Tape<'_>, Var) -> Var| {
        let mut gradients = Gradients::new(&Device::Cpu, &parameters);
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let x_now = tape.param(x);
        let loss = loss(&mut tape, x_now);
        tape.backward(loss, &mut gradients);
        (tape.scalar(loss).to_bits(), gradients.get(x).data().iter().map(|d| d.to_bits()).collect::<Vec<_>>())
    };
    let apart = run(&|tape, x| {
        let (first, rest) = (tape.rows(x, 0..2), tape.rows(x, 2..4));
        let (first, rest) =
            (tape.bce_with_logits(first, &[1.0, 1.0]), tape.bce_with_logits(rest, &[0.0, 0.0]));
        tape.add(first, rest)
    });
    assert_eq!(run(&|tape, x| tape.pair_loss(x, 2)), apart);
}

#[test]
fn losses_of_extreme_logits_are_exact() {
    let logits = [120.0f32, -120.0, 120.0, -120.0, 0.0];
    let targets = [1.0f32, 0.0, 0.0, 1.0, 0.5];
    let mut parameters = Parameters::new();
    let id = parameters.add("logits", Tensor::from_vec(&Device::Cpu, 1, 5, logits.to_vec()));
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
    let x = tape.param(id);
    let loss = tape.bce_with_logits(x, &targets);
    assert!((tape.scalar(loss) - (240.0 + 2f32.ln()) / 5.0).abs() < 1e-4);
    tape.backward(loss, &mut gradients);
    assert_eq!(gradients.get(id).data(), &[0.0, 0.0, 0.2, -0.2, 0.0]);
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
    let x = tape.constant(Tensor::from_vec(&Device::Cpu, 1, 2, vec![f32::NAN, 1.0]));
    let loss = tape.bce_with_logits(x, &[1.0, 1.0]);
    assert!(tape.scalar(loss).is_nan(), "a NaN must not be hidden");
}

#[test]
fn adam_follows_its_definition() {
    let start = super::random(3, 7, 1);
    let mut parameters = Parameters::new();
    let id = parameters.add("w", tensor(&start));
    let options = AdamOptions { weight_decay: 0.1, ..AdamOptions::default() };
    let mut adam = Adam::new(&Device::Cpu, &parameters, options);
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let (mut w, mut m, mut v) = (start.values, vec![0.0; 21], vec![0.0; 21]);
    for step in 1..=5 {
        let g = super::random(3, 7, 10 + step);
        gradients.get_mut(id).data_mut().copy_from_slice(tensor(&g).data());
        adam.step(&mut parameters, &gradients);
        for i in 0..21 {
            m[i] = 0.9 * m[i] + 0.1 * g.values[i];
            v[i] = 0.999 * v[i] + 0.001 * g.values[i] * g.values[i];
            let mean = m[i] / (1.0 - 0.9f64.powi(step as i32));
            let square: f64 = v[i] / (1.0 - 0.999f64.powi(step as i32));
            w[i] = w[i] * (1.0 - 1e-4) - 1e-3 * mean / (square.sqrt() + 1e-8);
        }
        let error = super::relative(parameters.get(id).data(), &w);
        assert!(error < 1e-6, "step {step}: {error}");
    }
    assert_eq!(adam.steps(), 5);
}

#[test]
fn weights_and_optimizer_come_back_from_bytes() {
    let mut parameters = Parameters::new();
    for (i, name) in ["z", "a.weight", "m"].into_iter().enumerate() {
        parameters.add(name, tensor(&super::random(i + 1, 4, i as u64)));
    }
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let z = parameters.find("z").unwrap();
    gradients.get_mut(z).data_mut().fill(0.5);
    let mut adam = Adam::new(&Device::Cpu, &parameters, AdamOptions::default());
    adam.step(&mut parameters, &gradients);
    let (bytes, state) = (parameters.to_bytes().unwrap(), adam.to_bytes(&parameters).unwrap());

    let mut back = Parameters::from_bytes(&Device::Cpu, &bytes).unwrap();
    let names: Vec<&str> = back.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["z", "a.weight", "m"]);
    let mut adam_back = Adam::new(&Device::Cpu, &back, AdamOptions::default());
    adam_back.load_bytes(&back, &state).unwrap();
    adam.step(&mut parameters, &gradients);
    adam_back.step(&mut back, &gradients);
    for ((_, a), (_, b)) in parameters.iter().zip(back.iter()) {
        assert_eq!(a.data(), b.data());
    }
}

#[test]
fn bytes_of_another_model_are_refused_and_change_nothing() {
    let model = |name: &str, rows| {
        let mut p = Parameters::new();
        p.add(name, tensor(&super::random(rows, 2, rows as u64)));
        p
    };
    let ours = model("w", 2);
    let adam_of = |model: &Parameters| Adam::new(&Device::Cpu, model, AdamOptions::default());
    let mut adam = adam_of(&ours);
    let before = adam.to_bytes(&ours).unwrap();
    let mut load = |other: Parameters| adam.load_bytes(&ours, &adam_of(&other).to_bytes(&other).unwrap());
    assert!(matches!(load(model("v", 2)), Err(StorageError::Missing { .. })));
    assert!(matches!(load(model("w", 3)), Err(StorageError::Shape { .. })));
    assert!(matches!(load(Parameters::new()), Err(StorageError::Missing { .. })));
    let weights = ours.to_bytes().unwrap();
    for cut in 0..weights.len() {
        assert!(adam.load_bytes(&ours, &before[..cut.min(before.len() - 1)]).is_err(), "cut at {cut}");
        assert!(Parameters::from_bytes(&Device::Cpu, &weights[..cut]).is_err(), "cut at {cut}");
    }
    assert!(matches!(adam.load_bytes(&ours, &weights), Err(StorageError::Metadata { key: "steps" })));
    assert_eq!(adam.to_bytes(&ours).unwrap(), before);
}
