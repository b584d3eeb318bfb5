//! Products in bf16 on a CPU that is faster in it: what they are of rounded factors, in every orientation and at every
//! edge, the same shared or alone; and steps that are made of them.

use evergraph::device::Device;
use evergraph::device::matmul::{self, Into, Precision, View, ViewMut, has_bf16, in_precision, matmul};
use evergraph::train::{StepMode, Trainer, TrainerOptions};

use crate::skip::skipped;
use crate::tgn_stream::{BATCH, Sight, Stream, wide};

/// Whether this CPU is faster in bf16; says so where not.
fn there() -> bool {
    if !has_bf16() {
        skipped("this CPU has no unit by which matrices are multiplied in bf16");
    }
    has_bf16()
}

fn values(count: usize, seed: u32) -> Vec<f32> {
    let value = |i: u32| (i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) >> 8;
    (0..count as u32).map(|i| value(i) as f32 / 8_388_608.0 - 1.0).collect()
}

/// To the nearest number of eight bits, ties to even.
fn rounded(value: f32) -> f64 {
    let bits = value.to_bits();
    f64::from(f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000))
}

/// Shapes (rows, columns, length of sums) at and beside the edges of tiles, blocks and shares.
const SHAPES: [(usize, usize, usize); 9] = [
    (1, 32, 32),
    (16, 32, 32),
    (17, 33, 33),
    (31, 47, 63),
    (32, 32, 64),
    (33, 65, 95),
    (129, 100, 172),
    (300, 100, 113),
    (257, 300, 472),
];

/// A factor, and its value at a row and a column.
type Factor<'a> = (View<'a>, &'a dyn Fn(usize, usize) -> f32);

/// Runs `check` with a left and a right factor of `shape` in all orientations.
fn in_all_orientations((m, n, k): (usize, usize, usize), check: impl Fn(Factor<'_>, Factor<'_>)) {
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    let lefts: [Factor<'_>; 2] = [
        (View::new(&a, m, k), &|row, column| a[row * k + column]),
        (View::new(&a, k, m).t(), &|row, column| a[column * m + row]),
    ];
    let rights: [Factor<'_>; 2] = [
        (View::new(&b, k, n), &|row, column| b[row * n + column]),
        (View::new(&b, n, k).t(), &|row, column| b[column * k + row]),
    ];
    for left in lefts {
        rights.iter().for_each(|right| check(left, *right));
    }
}

fn product(shape: (usize, usize, usize), left: View<'_>, right: View<'_>) -> Vec<f32> {
    let mut product = vec![f32::NAN; shape.0 * shape.1];
    matmul(ViewMut::new(&mut product, shape.0, shape.1), Into::Replace, 1.0, left, right);
    product
}

#[test]
fn a_product_is_that_of_the_rounded_factors() {
    if !there() {
        return;
    }
    for shape in SHAPES {
        let (m, n, k) = shape;
        in_all_orientations(shape, |(left, a), (right, b)| {
            // In gaps between rows stands what stood there. Behind the last row is nothing.
            let stride = n + 3;
            let mut found = vec![0.25_f32; m * stride - 3];
            let into = ViewMut::strided(&mut found, m, n, stride);
            in_precision(Precision::Bf16, || matmul(into, Into::Add, 0.5, left, right));
            for (row, found) in found.chunks(stride).enumerate() {
                assert!(found[n..].iter().all(|gap| *gap == 0.25), "{shape:?}, row {row}");
                for (column, value) in found[..n].iter().enumerate() {
                    let place = |i| rounded(a(row, i)) * rounded(b(i, column));
                    let expected = 0.25 + 0.5 * (0..k).map(place).sum::<f64>();
                    let error = (f64::from(*value) - expected).abs();
                    assert!(error < 2e-4, "{shape:?} at {row}, {column}: {value} for {expected}");
                }
            }
        });
    }
}

#[test]
fn products_of_short_rows_and_those_of_f32_are_not_rounded() {
    if !there() {
        return;
    }
    let (bf16, f32) = (Precision::Bf16, Precision::F32);
    for (shape, precision) in [((64, 20, 100), bf16), ((64, 100, 20), bf16), ((64, 100, 100), f32)] {
        in_all_orientations(shape, |(left, _), (right, _)| {
            let exact = product(shape, left, right);
            let found = in_precision(precision, || product(shape, left, right));
            assert_eq!(found, exact, "{shape:?}");
        });
    }
}

#[test]
fn a_product_has_the_same_bits_shared_and_alone_and_row_by_row() {
    if !there() {
        return;
    }
    let shape = (300, 100, 472);
    in_all_orientations(shape, |(left, _), (right, _)| {
        let twice = || {
            let mut product = product(shape, left, right);
            matmul(ViewMut::new(&mut product, shape.0, shape.1), Into::Add, 0.5, left, right);
            product
        };
        let compute = || in_precision(Precision::Bf16, twice);
        let alone = matmul::alone(compute);
        for threads in [2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert!(pool.install(compute) == alone, "{threads} threads");
        }
    });
    // A row does not depend on the others: those of a part are those of the whole.
    let (a, b) = (values(300 * 472, 1), values(100 * 472, 2));
    let of_rows = |from: usize, to: usize| {
        let left = View::new(&a[from * 472..to * 472], to - from, 472);
        in_precision(Precision::Bf16, || product((to - from, 100, 472), left, View::new(&b, 100, 472).t()))
    };
    let all = of_rows(0, 300);
    for (from, to) in [(37, 90), (37, 40), (299, 300)] {
        assert_eq!(all[from * 100..to * 100], of_rows(from, to)[..], "rows {from} to {to}");
    }
}

#[test]
fn numbers_that_are_not_finite_stay_in_their_row() {
    if !there() {
        return;
    }
    // The largest number is rounded up, to infinity; the smallest are zeros.
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-42] {
        let (mut a, b) = (values(40 * 64, 1), values(50 * 64, 2));
        a[33 * 64 + 5] = odd;
        let (left, right) = (View::new(&a, 40, 64), View::new(&b, 50, 64).t());
        let found = in_precision(Precision::Bf16, || product((40, 50, 64), left, right));
        for (row, values) in found.chunks_exact(50).enumerate() {
            let is_finite = values.iter().all(|value| value.is_finite());
            assert_eq!(is_finite, row != 33 || odd == 1e-42, "row {row} beside {odd}");
        }
        if odd == 1e-42 {
            a[33 * 64 + 5] = 0.0;
            let left = View::new(&a, 40, 64);
            assert!(found == in_precision(Precision::Bf16, || product((40, 50, 64), left, right)));
        }
    }
}

#[test]
fn steps_in_bf16_learn_nearly_the_same_and_the_same_at_any_number_of_threads() {
    if !there() {
        return;
    }
    let batches = 40;
    let stream = Stream::new(batches);
    let run = |options: TrainerOptions, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut trainer = Trainer::new(options, &Device::Cpu).unwrap();
            let step = |batch| stream.step(&mut trainer, batch, Sight::BeforeBatch, StepMode::Train).loss;
            let losses: Vec<f32> = (0..batches).map(step).collect();
            let mut saved = Vec::new();
            trainer.save(&mut saved).unwrap();
            (losses, saved)
        })
    };
    let (losses, saved) = run(wide(), 1);
    for threads in [2, 3] {
        assert!(run(wide(), threads).1 == saved, "{threads} threads");
    }
    let (exact, other) = run(TrainerOptions { precision: Precision::F32, ..wide() }, 1);
    assert!(saved != other, "products of {BATCH} events are large enough for bf16");
    // The first steps differ by rounding; what it adds up to later is other, and not worse but by chance.
    for (step, (found, expected)) in losses.iter().zip(&exact).take(3).enumerate() {
        assert!((found - expected).abs() < 0.02 * expected, "step {step}: {found} for {expected}");
    }
    let mean = |losses: &[f32]| losses[batches - 20..].iter().sum::<f32>() / 20.0;
    let (found, expected) = (mean(&losses), mean(&exact));
    assert!((found - expected).abs() < 0.15 * expected, "{found} for {expected}");
}
