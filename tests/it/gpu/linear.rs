//! Linear layers on a GPU, forward and backward, within 1e-4 of sums in 64 bits, wherever their rows lie.

use std::sync::Arc;

use evergraph::device::cuda::layers::{
    Layout, LinearSizes, Matrix, MatrixMut, Put, WeightGradient, WeightSums, linear_forward, linear_input,
    linear_pieces, linear_weights,
};
use evergraph::device::cuda::{Cuda, CudaBuffer, CudaError, CudaWork};

use super::layers::{On, agree, summed};
use super::{Draws, gpu, small};

/// Rows of parts on the host, in the layout of a buffer.
struct Rows {
    layout: Layout,
    /// Rows, columns, parts.
    shape: [usize; 3],
    values: Vec<f32>,
}

impl Rows {
    /// Parts side by side in rows that are `beyond` values longer and begin that far behind the buffer's beginning.
    fn beside(draws: &mut Draws, shape: [usize; 3], beyond: usize) -> Self {
        let [_, columns, parts] = shape;
        let stride = columns * parts + beyond;
        Self::drawn(draws, shape, Layout { first: beyond, stride, step: columns })
    }

    /// Parts one after the other.
    fn stacked(draws: &mut Draws, shape: [usize; 3]) -> Self {
        let [rows, columns, _] = shape;
        Self::drawn(draws, shape, Layout { first: 0, stride: columns, step: rows * columns })
    }

    /// What lies between is no number: whatever reads it, or writes it, shows.
    fn drawn(draws: &mut Draws, shape: [usize; 3], layout: Layout) -> Self {
        let [rows, columns, parts] = shape;
        let last = (parts.max(1) - 1) * layout.step + (rows.max(1) - 1) * layout.stride;
        let mut made = Self { layout, shape, values: vec![f32::NAN; layout.first + last + columns] };
        for (part, row) in made.each() {
            let at = made.at(part, row, 0);
            made.values[at..at + columns].copy_from_slice(&draws.floats(columns, 1.0));
        }
        made
    }

    fn each(&self) -> Vec<(usize, usize)> {
        let [rows, _, parts] = self.shape;
        (0..parts).flat_map(|part| (0..rows).map(move |row| (part, row))).collect()
    }

    fn at(&self, part: usize, row: usize, column: usize) -> usize {
        self.layout.first + part * self.layout.step + row * self.layout.stride + column
    }

    fn get(&self, part: usize, row: usize, column: usize) -> f64 {
        f64::from(self.values[self.at(part, row, column)])
    }

    /// Whether `found` has the values of `expected`, and nothing else was written.
    #[track_caller]
    fn check(&self, found: &CudaBuffer<f32>, what: &str, expected: impl Fn(usize, usize, usize) -> f64) {
        let found = found.copy_to_host().unwrap();
        let mut seen = vec![false; found.len()];
        let values: Vec<(usize, f64)> = self
            .each()
            .into_iter()
            .flat_map(|(part, row)| (0..self.shape[1]).map(move |column| (part, row, column)))
            .map(|(part, row, column)| (self.at(part, row, column), expected(part, row, column)))
            .collect();
        let top = values.iter().fold(1e-3_f64, |top, (_, value)| top.max(value.abs()));
        for (at, value) in values {
            seen[at] = true;
            let off = (f64::from(found[at]) - value).abs() / top;
            assert!(off < 1e-4, "{what}: value {at} is {}, not {value}, of at most {top}", found[at]);
        }
        let beside = found.iter().zip(&seen).filter(|(value, seen)| !**seen && !value.is_nan()).count();
        assert_eq!(beside, 0, "{what}: values beside its rows were written");
    }
}

/// One shape in all directions: rows, inputs, outputs, parts, and how much longer rows are than they have to be.
fn check([rows, inputs, outputs, parts]: [usize; 4], beyond: usize, seed: u64) {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(seed);
    let sizes = LinearSizes::new([rows, inputs, outputs]).parts(parts, 0.5);
    let a = Rows::beside(&mut draws, [rows, inputs, parts], beyond);
    let w = Rows::stacked(&mut draws, [outputs, inputs, parts]);
    let d = Rows::beside(&mut draws, [rows, outputs, parts], beyond);
    let before = Rows::beside(&mut draws, [rows, outputs, parts], beyond);
    let bias = draws.floats(outputs, 1.0);
    let (on_a, on_w, on_d) = (on.copy(&a.values), on.copy(&w.values), on.copy(&d.values));
    let on_bias = on.copy(&bias);
    let what = format!("{rows} rows from {inputs} to {outputs}, {parts} parts, {beyond} beyond");

    let product = |part: usize, row: usize, output: usize| {
        0.5 * (0..inputs).map(|i| a.get(part, row, i) * w.get(part, output, i)).sum::<f64>()
    };
    let mut out = on.copy(&before.values);
    let (from_a, from_w) = ((&on_a, a.layout), (&on_w, w.layout));
    let into = (&mut out, before.layout);
    linear_forward(on.context(), sizes, from_a, from_w, Some(&on_bias), Put::REPLACE.rectified(), into)
        .unwrap();
    before.check(&out, &format!("{what}, rectified"), |part, row, output| {
        (product(part, row, output) + f64::from(bias[output])).max(0.0)
    });
    let mut out = on.copy(&before.values);
    let into = (&mut out, before.layout);
    linear_forward(on.context(), sizes, from_a, from_w, None, Put::ADD, into).unwrap();
    before.check(&out, &format!("{what}, added"), |part, row, output| {
        product(part, row, output) + before.get(part, row, output)
    });

    let mut out = on.copy(&before.values);
    let into = (&mut out, before.layout);
    linear_forward(on.context(), sizes, from_a, from_w, None, Put::ADD.rectified(), into).unwrap();
    before.check(&out, &format!("{what}, added and rectified"), |part, row, output| {
        (product(part, row, output) + before.get(part, row, output)).max(0.0)
    });

    let mut da = on.copy(&a.values);
    linear_input(on.context(), sizes, (&on_d, d.layout), from_w, Put::REPLACE, (&mut da, a.layout)).unwrap();
    a.check(&da, &format!("{what}, gradient of inputs"), |part, row, input| {
        0.5 * (0..outputs).map(|o| d.get(part, row, o) * w.get(part, o, input)).sum::<f64>()
    });

    // All parts' weights and, behind them, the first part's bias: piece by piece, then the sums.
    let (pieces, weights) = (linear_pieces(rows), parts * outputs * inputs);
    let all = weights + outputs;
    let mut found: Vec<Vec<u32>> = Vec::new();
    for _ in 0..2 {
        // Beside them, in the same launch, those of another layer, and pieces that the rows do not reach.
        let (mut partials, mut others) = (on.room(pieces * all), on.room((pieces + 2) * (weights + 3)));
        let product = |at, bias| WeightGradient { sizes, d: (&on_d, d.layout), a: from_a, at, bias };
        let sums = [
            (&mut partials, all, pieces, product(w.layout, Some(weights))),
            (&mut others, weights + 3, pieces + 2, product(w.layout.at(3), None)),
        ];
        let sums = sums.map(|(partials, step, pieces, product)| WeightSums {
            partials,
            step,
            pieces,
            products: vec![product],
        });
        linear_weights(&CudaWork::new(cuda.clone()), sums).unwrap();
        let (given, others) = (partials.copy_to_host().unwrap(), others.copy_to_host().unwrap());
        for (piece, found) in others.chunks(weights + 3).enumerate() {
            assert!(found[..3].iter().all(|value| value.is_nan()), "{what}: values before were written");
            let expected =
                given.chunks(all).nth(piece).map_or(vec![0.0; weights], |piece| piece[..weights].to_vec());
            assert_eq!(found[3..], expected, "{what}: piece {piece}");
        }
        let sums = summed(&cuda, [pieces, all], &partials);
        let of_weights =
            (0..parts).flat_map(|p| (0..outputs).flat_map(move |o| (0..inputs).map(move |i| (p, o, i))));
        let sum = |(p, o, i)| 0.5 * (0..rows).map(|r| d.get(p, r, o) * a.get(p, r, i)).sum::<f64>();
        let of_bias = (0..outputs).map(|o| (0..rows).map(|r| d.get(0, r, o)).sum::<f64>());
        agree(&sums, of_weights.map(sum).chain(of_bias), &format!("{what}, gradients of weights and bias"));
        found.push(sums.copy_to_host().unwrap().iter().map(|value| value.to_bits()).collect());
    }
    assert_eq!(found[0], found[1], "{what}: the same at every launch");
}

#[test]
fn products_on_a_gpu_are_those_of_sums_in_64_bits() {
    // Rows in whole vectors and not, tails of every tile, parts as of heads, several pieces of rows.
    let cases = [
        ([1, 1, 1, 1], 0),
        ([65, 16, 64, 1], 4),
        ([70, 33, 65, 1], 3),
        ([3, 100, 130, 2], 8),
        ([67, 50, 21, 4], 1),
        ([1_100, 7, 5, 1], 0),
        ([300, 8, 12, 2], 4),
        ([300, 8, 7, 1], 0),
        ([1_100, 70, 130, 2], 0),
    ];
    for (seed, (sizes, beyond)) in (1..).zip(cases) {
        check(sizes, beyond, seed);
    }
    if !small() {
        check([12_000, 300, 100, 1], 0, 20);
        check([600, 372, 100, 2], 12, 21);
    }
}

/// Asks for the partial sums of one product, by so many pieces, `step` values apart.
fn weigh(
    cuda: &Arc<Cuda>,
    (sizes, d, a): (LinearSizes, Matrix<'_>, Matrix<'_>),
    (pieces, step, bias): (usize, usize, Option<usize>),
    (partials, at): MatrixMut<'_>,
) -> Result<(), CudaError> {
    let products = vec![WeightGradient { sizes, d, a, at, bias }];
    linear_weights(&CudaWork::new(cuda.clone()), [WeightSums { partials, step, pieces, products }])
}

#[test]
fn products_of_nothing_are_nothing_and_what_does_not_fit_is_refused() {
    let cuda = gpu();
    let on = On(&cuda);
    let (a, w, mut out) = (on.copy(&[1.0; 12]), on.copy(&[1.0; 8]), on.copy(&[7.0_f32; 6]));
    let layout = Layout::dense;
    // Without columns between, a product is zero, and without rows there is none.
    let none = LinearSizes::new([3, 0, 2]);
    let into = (&mut out, layout(2));
    linear_forward(on.context(), none, (&a, layout(0)), (&w, layout(0)), None, Put::REPLACE, into).unwrap();
    assert_eq!(out.copy_to_host().unwrap(), [0.0; 6]);
    let no_rows = LinearSizes::new([0, 4, 2]);
    let mut partials = on.copy::<f32>(&[]);
    let into = (&mut partials, layout(4));
    weigh(&cuda, (no_rows, (&a, layout(2)), (&a, layout(4))), (0, 8, None), into).unwrap();

    let message = |result: Result<(), CudaError>| result.unwrap_err().to_string();
    let (mut partials, nothing) = (on.room(6), LinearSizes::new([3, 0, 2]));
    let into = (&mut partials, layout(0));
    let given = (nothing, (&a, layout(2)), (&a, layout(0)));
    let error = message(weigh(&cuda, given, (1, 2, Some(0)), into));
    assert!(error.contains("columns beside a bias: 0 values, and 1 are needed"), "{error}");
    let sizes = LinearSizes::new([3, 4, 2]);
    let from = ((&a, layout(4)), (&w, layout(4)));
    let into = (&mut out, layout(2).at(1));
    let error = message(linear_forward(on.context(), sizes, from.0, from.1, None, Put::ADD, into));
    assert!(error.contains("results: 6 values, and 7 are needed"), "{error}");
    let into = (&mut out, Layout { first: 0, stride: 1, step: 0 });
    let error = message(linear_forward(on.context(), sizes, from.0, from.1, None, Put::ADD, into));
    assert!(error.contains("rows of 2 values, 1 apart, overlap"), "{error}");
    let bias = on.copy(&[1.0_f32]);
    let into = (&mut out, layout(2));
    let error = message(linear_forward(on.context(), sizes, from.0, from.1, Some(&bias), Put::ADD, into));
    assert!(error.contains("the bias: 1 values, and 2 are needed"), "{error}");
    let two = sizes.parts(2, 1.0);
    let into = (&mut out, layout(2));
    let error =
        message(linear_forward(on.context(), two, from.0, (&w, layout(4).parts(8)), None, Put::ADD, into));
    assert!(error.contains("weights: 8 values, and 16 are needed"), "{error}");
    let mut da = on.room(11);
    let d = on.copy(&[1.0_f32; 6]);
    let into = (&mut da, layout(4));
    let error = message(linear_input(on.context(), sizes, (&d, layout(2)), from.1, Put::REPLACE, into));
    assert!(error.contains("results: 11 values, and 12 are needed"), "{error}");
    let mut partials = on.room(7);
    let into = (&mut partials, layout(4));
    let given = (sizes, (&d, layout(2)), from.0);
    let error = message(weigh(&cuda, given, (1, 8, None), into));
    assert!(error.contains("partial sums: 7 values, and 8 are needed"), "{error}");
    let mut partials = on.room(9);
    let into = (&mut partials, layout(4));
    let error = message(weigh(&cuda, given, (1, 10, Some(8)), into));
    assert!(error.contains("partial sums: 9 values, and 10 are needed"), "{error}");
    let mut partials = on.room(10);
    let error = message(weigh(&cuda, given, (0, 10, Some(8)), (&mut partials, layout(4))));
    assert!(error.contains("pieces: 0 values, and 1 are needed"), "{error}");

    // Columns behind those of the inputs are zeros, where they are wanted.
    let mut da = on.room(3 * 7);
    let (d, w) = ((&d, layout(2)), (&w, layout(4)));
    linear_input(on.context(), sizes.padded(6), d, w, Put::REPLACE, (&mut da, layout(7))).unwrap();
    for row in da.copy_to_host().unwrap().chunks(7) {
        assert_eq!(row[..6], [2.0, 2.0, 2.0, 2.0, 0.0, 0.0]);
        assert!(row[6].is_nan());
    }
}
