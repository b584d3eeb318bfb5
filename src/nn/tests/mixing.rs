//! Checks of the Gaussian unit, of products, and of the mixing of slots.

use super::Check;
use super::reference::{Matrix, gelu, layer_norm, linear};
use crate::nn::SlotMixing;
use crate::nn::cpu::dropout::factor;

const KEY: [u64; 3] = [7, 8, 9];

#[test]
fn products_and_the_gaussian_unit() {
    Check {
        name: "mul, of two values and of one with itself",
        inputs: &[(3, 4), (3, 4)],
        ours: &|t, p| {
            let (x, y) = (t.param(p[0]), t.param(p[1]));
            let product = t.mul(x, y);
            t.mul(product, x)
        },
        reference: &|m| Matrix::from_fn(3, 4, |r, c| m[0].at(r, c) * m[0].at(r, c) * m[1].at(r, c)),
    }
    .run();
    for (name, p) in [("gelu", 0.0), ("gelu and dropout", 0.3)] {
        Check {
            name,
            inputs: &[(7, 45)],
            ours: &|t, ids| {
                let x = t.param(ids[0]);
                let x = t.scale(x, 3.0);
                t.gelu(x, p, KEY)
            },
            reference: &|m| {
                Matrix::from_fn(7, 45, |r, c| {
                    let kept = if p == 0.0 { 1.0 } else { factor(p, KEY, (r * 45 + c) as u64) };
                    gelu(3.0 * m[0].at(r, c)) * f64::from(kept)
                })
            },
        }
        .run();
    }
}

#[test]
fn slots_that_are_mixed() {
    for (name, seeds, slots, cols, hidden, p) in [
        ("mix_slots", 2, 5, 19_usize, 3, 0.0),
        ("mix_slots of one column", 3, 4, 1, 2, 0.0),
        ("mix_slots of many seeds", 41, 2, 33, 1, 0.0),
        ("mix_slots with dropout", 3, 5, 19, 3, 0.4),
        ("mix_slots with dropout and whole vectors", 2, 3, 16, 4, 0.2),
    ] {
        let padded = cols.next_multiple_of(16);
        let kept = |key: [u64; 3], row: usize, c: usize| match p {
            0.0 => 1.0,
            p => f64::from(factor(p, key, (row * padded + c) as u64)),
        };
        Check {
            name,
            inputs: &[
                (seeds * slots, cols),
                (1, slots),
                (1, slots),
                (hidden, slots),
                (1, hidden),
                (slots, hidden),
                (1, slots),
            ],
            ours: &|t, ids| {
                let x = t.param(ids[0]);
                let [gamma, beta, w_a, b_a, w_b, b_b] = [1, 2, 3, 4, 5, 6].map(|i| ids[i]);
                let (eps, key) = (0.01, KEY);
                t.mix_slots(x, SlotMixing { gamma, beta, w_a, b_a, w_b, b_b, eps, dropout: p, key })
            },
            reference: &|m| {
                // Column by column as the paper has it: [columns, slots].
                let of_seed = |seed: usize| {
                    let x = Matrix::from_fn(cols, slots, |c, k| m[0].at(seed * slots + k, c));
                    let x = layer_norm(&x, &m[1], &m[2], f64::from(0.01f32));
                    let wide = linear(&x, &m[3], Some(&m[4]));
                    let wide = Matrix::from_fn(cols, hidden, |c, j| {
                        gelu(wide.at(c, j)) * kept(KEY, seed * hidden + j, c)
                    });
                    linear(&wide, &m[5], Some(&m[6]))
                };
                let mixed: Vec<Matrix> = (0..seeds).map(of_seed).collect();
                Matrix::from_fn(seeds * slots, cols, |r, c| {
                    m[0].at(r, c) + mixed[r / slots].at(c, r % slots) * kept([7, 8, 10], r, c)
                })
            },
        }
        .run();
    }
}
