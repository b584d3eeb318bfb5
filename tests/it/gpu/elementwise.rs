//! What layers do value by value on a GPU: bit for bit the tape's, but for a tangent.

use evergraph::device::cuda::layers::{
    accumulate, add, gelu, gelu_backward, multiply, relu, rnn, rnn_backward, scale,
};
use evergraph::device::cuda::{CudaBuffer, CudaError, twins::Mask};
use evergraph::nn::{RnnParams, Tape, Var};

use super::layers::{On, agree, wide};
use super::{Draws, gpu};
use crate::kernels_host::nn::{Inputs, twin_fuses};

/// That the first values have these bits, and none behind them was written. What is no number has many bit patterns, and
/// each processor returns its own.
#[track_caller]
fn same(found: &CudaBuffer<f32>, expected: &[f32], what: &str) {
    let found = found.copy_to_host().unwrap();
    let (front, behind) = found.split_at(expected.len());
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| if value.is_nan() { f32::NAN } else { *value }.to_bits())
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(front), bits(expected), "{what}");
    assert!(behind.iter().all(|value| value.is_nan()), "{what}: something behind the last value was written");
}

#[track_caller]
fn refused(result: Result<(), CudaError>, words: &str) {
    let message = result.unwrap_err().to_string();
    assert!(message.contains(words), "{message}");
}

const SIZES: [usize; 3] = [1, 1_003, 130];
/// Values that buffers have beyond those that count.
const BEYOND: usize = 3;

/// Two inputs and a gradient of `count` values.
fn drawn(seed: u64, count: usize) -> [Vec<f32>; 3] {
    let mut draws = Draws::new(seed);
    [(); 3].map(|()| draws.floats(count, 2.0))
}

/// Value and gradients of both inputs of an operation on the tape.
fn on_tape(
    [x, y, d]: &[Vec<f32>; 3],
    operation: impl FnOnce(&mut Tape<'_>, Var, Var) -> Var,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    Inputs::new(&[("x", 1, x), ("y", 1, y)]).run(d, &["x", "y"], |tape, parameters| {
        let [x, y] = ["x", "y"].map(|name| tape.param(parameters.find(name).unwrap()));
        operation(tape, x, y)
    })
}

#[test]
fn values_are_added_and_multiplied_on_a_gpu_bit_for_bit() {
    let cuda = gpu();
    let on = On(&cuda);
    for (seed, count) in (1..).zip(SIZES) {
        let given = drawn(seed, count);
        let [x, y, d] = [&given[0], &given[1], &given[2]].map(|values| on.copy(values));
        let (sums, _) = on_tape(&given, |tape, x, y| tape.add(x, y));
        let mut out = on.room(count + BEYOND);
        add(on.context(), &x, &y, count, &mut out).unwrap();
        same(&out, &sums, "sums");

        let (products, gradients) = on_tape(&given, |tape, x, y| tape.mul(x, y));
        let mut out = on.room(count + BEYOND);
        multiply(on.context(), &x, &y, count, true, &mut out).unwrap();
        same(&out, &products, "products");
        let mut dx = on.room(count + BEYOND);
        multiply(on.context(), &d, &y, count, true, &mut dx).unwrap();
        same(&dx, &gradients[0], "gradient of a factor");

        // Once more into what is there.
        let twice = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
        multiply(on.context(), &d, &x, count, false, &mut dx).unwrap();
        same(&dx, &twice(&gradients[0], &gradients[1]), "gradients of both factors");
        let mut sum = on.room(count + BEYOND);
        accumulate(on.context(), &d, count, true, &mut sum).unwrap();
        same(&sum, &given[2], "the first term");
        accumulate(on.context(), &y, count, false, &mut sum).unwrap();
        same(&sum, &twice(&given[2], &given[1]), "two terms");

        let short = &mut on.room(count - 1);
        refused(add(on.context(), &x, &y, count, short), "sums: ");
        refused(add(on.context(), &x, &out, count + 1, &mut on.room(count + 1)), "terms: ");
        refused(multiply(on.context(), &x, &y, count, true, short), "products: ");
        refused(multiply(on.context(), &out, &x, count + 1, true, &mut dx), "factors: ");
        refused(accumulate(on.context(), &x, count, true, short), "sums: ");
        refused(accumulate(on.context(), &x, count + 1, true, &mut on.room(count + 1)), "terms: ");
    }
}

#[test]
fn values_are_scaled_and_rectified_on_a_gpu_bit_for_bit() {
    let cuda = gpu();
    let on = On(&cuda);
    for (seed, count) in (11..).zip(SIZES) {
        let mut given = drawn(seed, count);
        given[0][0] = f32::NAN;
        let (x, factor) = (on.copy(&given[0]), -0.3_f32);
        let (value, _) = on_tape(&given, |tape, x, _| tape.scale(x, factor));
        let mut out = on.room(count + BEYOND);
        scale(on.context(), factor, &x, count, &mut out).unwrap();
        same(&out, &value, "scaled");
        let (value, _) = on_tape(&given, |tape, x, _| tape.relu(x));
        let mut out = on.room(count + BEYOND);
        relu(on.context(), &x, count, &mut out).unwrap();
        same(&out, &value, "rectified");

        let short = &mut on.room(count - 1);
        refused(scale(on.context(), factor, &x, count, short), "results: ");
        refused(relu(on.context(), &x, count, short), "results: ");
    }
    let none = on.copy::<f32>(&[]);
    relu(on.context(), &none, 0, &mut on.room(0)).unwrap();
}

#[test]
fn a_gaussian_unit_and_the_dropout_behind_it_are_the_tapes_on_a_gpu() {
    let cuda = gpu();
    let on = On(&cuda);
    for ((seed, count), p) in (21..).zip(SIZES).zip([0.0, 0.1, 0.75]) {
        let mut given = drawn(seed, count);
        for (x, far) in given[0].iter_mut().skip(5).zip([0.0, -0.0, -1e10, 1e10, 12.0, -12.0]) {
            *x = far;
        }
        let key = [seed, 7, 3];
        let (value, gradients) = on_tape(&given, |tape, x, _| tape.gelu(x, p, key));
        let (x, mut d, mut y) = (on.copy(&given[0]), on.copy(&given[2]), on.room(count + BEYOND));
        let mask = Mask::new(p, key);
        gelu(on.context(), mask, &x, count, &mut y).unwrap();
        gelu_backward(on.context(), mask, &x, count, &mut d).unwrap();
        if twin_fuses() {
            same(&y, &value, "values");
            same(&d, &gradients[0], "gradients");
        }
        let (y, d) = (y.copy_to_host().unwrap(), d.copy_to_host().unwrap());
        for i in 0..count {
            assert!((y[i] - value[i]).abs() <= 4e-7 * given[0][i].abs(), "{} and {}", y[i], value[i]);
            assert!((d[i] - gradients[0][i]).abs() <= 4e-6 * given[2][i].abs(), "gradient {i}");
        }
        let short = &mut on.room(count - 1);
        refused(gelu(on.context(), mask, &x, count, short), "results: ");
        refused(gelu_backward(on.context(), mask, &x, count, short), "gradients: ");
    }
}

#[test]
fn a_plain_cell_steps_forward_and_back_on_a_gpu() {
    let cuda = gpu();
    let on = On(&cuda);
    for (seed, width) in (31..).zip(SIZES) {
        // Products by which input and state come through as they are.
        let width = width.min(40);
        let given = drawn(seed, width);
        let unit: Vec<f32> = (0..width * width).map(|i| f32::from(u8::from(i % (width + 1) == 0))).collect();
        let zeros = vec![0.0; width];
        let inputs = Inputs::new(&[
            ("x", width, &given[0]),
            ("h", width, &given[1]),
            ("w_ih", width, &unit),
            ("w_hh", width, &unit),
            ("b_ih", width, &zeros),
            ("b_hh", width, &zeros),
        ]);
        let (value, gradients) = inputs.run(&given[2], &["x"], |tape, parameters| {
            let id = |name| parameters.find(name).unwrap();
            let (x, h) = (tape.param(id("x")), tape.param(id("h")));
            let (w_ih, w_hh, b_ih, b_hh) = (id("w_ih"), id("w_hh"), id("b_ih"), id("b_hh"));
            tape.rnn_cell(x, h, &RnnParams { w_ih, w_hh, b_ih, b_hh })
        });
        let (mut y, hidden, mut d) = (on.copy(&given[0]), on.copy(&given[1]), on.copy(&given[2]));
        rnn(on.context(), &hidden, width, &mut y).unwrap();
        agree(&y, wide(&value), "states");
        let exact = |i: usize| (f64::from(given[0][i]) + f64::from(given[1][i])).tanh();
        agree(&y, (0..width).map(exact), "states in 64 bits");
        // Its own result, so that only the slope is compared.
        let states = y.copy_to_host().unwrap();
        rnn_backward(on.context(), &y, width, &mut d).unwrap();
        let slopes: Vec<f32> = states.iter().zip(&given[2]).map(|(y, d)| d * (1.0 - y * y)).collect();
        same(&d, &slopes, "gradients");
        agree(&d, wide(&gradients[0]), "gradients of the tape");
        refused(rnn(on.context(), &hidden, width + 1, &mut y), "hidden: ");
        refused(rnn_backward(on.context(), &y, width, &mut on.room(width - 1)), "gradients: ");
    }
}
