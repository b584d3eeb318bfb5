//! The loss, the bound of the gradients' norm and the bounded step of Adam on a GPU, as by the tape and the optimizer.

use std::sync::Arc;

use evergraph::device::Device;
use evergraph::device::cuda::layers::{
    Moved, adam_bounded_all, bce, bce_backward, bound_norm, squares_of_all, squares_pieces,
};
use evergraph::device::cuda::twins::AdamStep;
use evergraph::device::cuda::{Cuda, CudaBuffer, CudaWork};
use evergraph::nn::{Gradients, Mode, Parameters, Tape, Tensor};

use super::layers::On;
use super::{Draws, gpu};
use crate::kernels_host::nn::{Inputs, moved_by_adam};

#[track_caller]
fn near(found: f32, expected: f32, what: &str) {
    let off = (found - expected).abs() / expected.abs().max(1e-6);
    assert!(off < 1e-6, "{what}: {found}, not {expected}");
}

#[test]
fn the_cross_entropy_of_pairs_on_a_gpu_is_the_tapes() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(4);
    for (count, ones, scale) in [(1, 1, 1.0), (3, 0, 2.5), (700, 350, -0.5), (301, 7, 1.0), (600, 600, 1.0)] {
        let sizes = [ones, count];
        let mut logits = draws.floats(count + 2, 3.0);
        // Those behind do not count.
        let counted = logits.split_at_mut(count).0;
        counted[0] = if ones > 0 { -200.0 } else { 90.0 };
        let inputs = Inputs::new(&[("logits", 1, counted)]);
        let (value, gradients) = inputs.run(&[scale], &["logits"], |tape, parameters| {
            let logits = tape.param(parameters.find("logits").unwrap());
            tape.pair_loss(logits, ones)
        });
        let (on_logits, given, mut loss) = (on.copy(&logits), on.copy(&[scale]), on.room(1));
        bce(on.context(), &on_logits, sizes, &mut loss).unwrap();
        near(loss.copy_to_host().unwrap()[0], value[0], "the loss");
        let mut d = on.room(count + 1);
        bce_backward(on.context(), &on_logits, sizes, &given, &mut d).unwrap();
        let d = d.copy_to_host().unwrap();
        for (found, expected) in d.iter().zip(&gradients[0]) {
            near(*found, *expected, "a gradient");
        }
        assert!(d[count].is_nan());
        let error = bce(on.context(), &on_logits, [ones, count + 3], &mut loss).unwrap_err().to_string();
        assert!(error.contains("logits: "), "{error}");
        for none in [[0, 0], [count + 1, count]] {
            let error = bce(on.context(), &on_logits, none, &mut loss).unwrap_err().to_string();
            assert!(error.contains("values to average: "), "{error}");
        }
        let mut short = on.room(count - 1);
        let error = bce_backward(on.context(), &on_logits, sizes, &given, &mut short);
        assert!(error.unwrap_err().to_string().contains("gradients: "));
        let error = bce_backward(on.context(), &on_logits, sizes, &on.room(0), &mut short);
        assert!(error.unwrap_err().to_string().contains("the loss's gradient: "));
    }
}

#[test]
fn gradients_that_several_layers_add_to_are_those_of_the_cpu() {
    let values = Draws::new(5).floats(60, 1.0);
    let found = [Device::Cpu, Device::Cuda(CudaWork::new(gpu()))].map(|device| {
        let tensor = |rows, columns, first: usize| {
            Tensor::from_vec(&device, rows, columns, values[first..][..rows * columns].to_vec())
        };
        let mut parameters = Parameters::new();
        let (w, b) = (parameters.add("w", tensor(5, 5, 0)), parameters.add("b", tensor(1, 5, 25)));
        let idle = parameters.add("idle", tensor(1, 5, 0));
        let mut gradients = Gradients::new(&device, &parameters);
        let walk = |gradients: &mut Gradients| {
            let mut tape = Tape::new(&device, &parameters, Mode::Train);
            let x = tape.constant(tensor(5, 5, 30));
            let once = tape.linear(x, w, Some(b));
            let twice = tape.linear(once, w, Some(b));
            let itself = tape.param(w);
            let all = tape.add(twice, itself);
            let loss = tape.pair_loss(all, 10);
            tape.backward(loss, gradients);
        };
        // Onto zeros, onto what is there, and anew.
        let mut seen = Vec::new();
        for over in [false, false, true] {
            if over {
                gradients.start_over();
            }
            walk(&mut gradients);
            seen.push([w, b, idle].map(|id| gradients.get(id).to_vec()).concat());
        }
        seen
    });
    for (walk, (cpu, gpu)) in found[0].iter().zip(&found[1]).enumerate() {
        for (i, (expected, found)) in cpu.iter().zip(gpu).enumerate() {
            assert!((expected - found).abs() < 1e-6, "walk {walk}, value {i}: {found}, not {expected}");
        }
    }
    assert!(found[0][1][0] != found[0][0][0] && found[0][2] == found[0][0]);
}

/// Norm and factor of some gradients, given the loss.
fn bound(cuda: &Arc<Cuda>, gradients: &[Vec<f32>], most: f32, loss: f32) -> CudaBuffer<f32> {
    let (on, work) = (On(cuda), CudaWork::new(cuda.clone()));
    let test = "a test";
    let (cuda, stream) = on.context();
    let pieces: usize = gradients.iter().map(|values| squares_pieces(values.len())).sum();
    let mut partials = CudaBuffer::from_slice(cuda, stream, &vec![f64::NAN; pieces], test).unwrap();
    let on_gpu: Vec<_> = gradients.iter().map(|values| (on.copy(values), values.len())).collect();
    let given: Vec<_> = on_gpu.iter().map(|(values, count)| (values, *count)).collect();
    squares_of_all(&work, &given, &mut partials).unwrap();
    let mut bound = on.room(2);
    bound_norm(on.context(), &partials, most, &on.copy(&[loss]), &mut bound).unwrap();
    let more = [&given[..], &given[..1]].concat();
    let error = squares_of_all(&work, &more, &mut partials).unwrap_err().to_string();
    assert!(error.contains("partial sums: "), "{error}");
    let error = squares_of_all(&work, &[(given[0].0, given[0].1 + 1)], &mut partials).unwrap_err();
    assert!(error.to_string().contains("a gradient: "), "{error}");
    bound
}

#[test]
fn the_norm_of_gradients_is_bounded_on_a_gpu() {
    let cuda = gpu();
    let mut draws = Draws::new(2);
    for sizes in [vec![1], vec![4_097, 3, 8_192], vec![20_000, 1, 300]] {
        let gradients: Vec<Vec<f32>> = sizes.iter().map(|size| draws.floats(*size, 1.0)).collect();
        let all = || gradients.iter().flatten().map(|value| f64::from(*value));
        let norm = all().map(|value| value * value).sum::<f64>().sqrt() as f32;
        for most in [norm / 4.0, norm * 2.0] {
            let found = bound(&cuda, &gradients, most, 0.7).copy_to_host().unwrap();
            near(found[0], norm, "the norm");
            near(found[1], (most / norm).min(1.0), "the factor");
        }
    }
    let factor =
        |gradients: &[f32], loss| bound(&cuda, &[gradients.to_vec()], 5.0, loss).copy_to_host().unwrap()[1];
    assert_eq!(factor(&[1.0, 2.0], 1.0), 1.0);
    for (gradients, loss) in [
        ([1.0, f32::NAN], 1.0),
        ([f32::INFINITY, 0.0], 1.0),
        ([1.0, 2.0], f32::NAN),
        ([1.0, 2.0], f32::INFINITY),
    ] {
        assert_eq!(factor(&gradients, loss), 0.0, "{gradients:?}, loss {loss}");
    }
}

/// Weights and moments on a GPU, of tensors of so many values, and room behind each.
fn tensors(on: On<'_>, sizes: &[usize], values: &[f32]) -> Vec<[CudaBuffer<f32>; 3]> {
    let mut rest = values;
    let mut of = |&size: &usize| {
        let (own, more) = rest.split_at(size);
        rest = more;
        let long = |values: &[f32]| on.copy(&[values, &[f32::NAN; 3]].concat());
        [long(own), long(&vec![0.0; size]), long(&vec![0.0; size])]
    };
    sizes.iter().map(&mut of).collect()
}

#[test]
fn all_tensors_are_moved_by_one_launch_bit_for_bit_and_by_none_where_gradients_are_not_finite() {
    let cuda = gpu();
    let on = On(&cuda);
    let work = CudaWork::new(cuda.clone());
    for sizes in [vec![1], vec![700, 1, 0, 5_000, 1_025, 0], vec![1_024, 1_023, 3_000, 2]] {
        let all: usize = sizes.iter().sum();
        let (start, given, steps, expected) = moved_by_adam(all, 3);
        let mut moving = tensors(on, &sizes, &start);
        let (bound, refused) = (on.copy(&[9.0, 0.5]), on.copy(&[f32::NAN, 0.0]));
        for (step, gradient) in steps.iter().zip(given.chunks(all)) {
            let &[beta1, beta2, size, root, eps, shrink] = step;
            let step = AdamStep { beta1, beta2, size, root, eps, shrink };
            // Twice what the bound makes of it.
            let doubled: Vec<f32> = gradient.iter().map(|value| 2.0 * value).collect();
            let mut gradients = tensors(on, &sizes, &doubled);
            for bound in [&bound, &refused] {
                let pairs = moving.iter_mut().zip(&gradients).zip(&sizes);
                let mut moved: Vec<Moved<'_>> = pairs
                    .map(|(([weights, first, second], [gradient, ..]), &count)| Moved {
                        weights,
                        first,
                        second,
                        gradient,
                        count,
                    })
                    .collect();
                adam_bounded_all(&work, step, &mut moved, bound).unwrap();
                let error = adam_bounded_all(&work, step, &mut moved, &on.room(1)).unwrap_err();
                assert!(error.to_string().contains("norm and factor: 1 values"), "{error}");
                moved[0].count += 4;
                let error = adam_bounded_all(&work, step, &mut moved, bound).unwrap_err();
                assert!(error.to_string().contains("weights: "), "{error}");
                // What follows is not learned from.
                gradients = tensors(on, &sizes, &vec![f32::NAN; all]);
            }
        }
        let mut rest = &expected[..];
        for ([weights, first, second], size) in moving.iter().zip(&sizes) {
            let (own, more) = rest.split_at(*size);
            rest = more;
            let found = weights.copy_to_host().unwrap();
            assert_eq!(found[..*size], *own, "{sizes:?}");
            for moments in [weights, first, second] {
                assert!(moments.copy_to_host().unwrap()[*size..].iter().all(|value| value.is_nan()));
            }
        }
    }
    adam_bounded_all(&work, AdamStep::default(), &mut [], &on.room(2)).unwrap();
}
