//! The loss, the bound of the gradients' norm and the bounded step of Adam on a card, as by the tape and the optimizer.

use evergraph::device::cuda::CudaBuffer;
use evergraph::device::cuda::layers::{
    adam, adam_bounded, bce, bce_backward, bound_norm, link_loss, squares, squares_pieces,
};
use evergraph::device::cuda::twins::AdamStep;

use super::layers::On;
use super::{Draws, card};
use crate::kernels_host::nn::{Inputs, moved_by_adam};

#[track_caller]
fn near(found: f32, expected: f32, what: &str) {
    let off = (found - expected).abs() / expected.abs().max(1e-6);
    assert!(off < 1e-6, "{what}: {found}, not {expected}");
}

#[test]
fn the_loss_and_its_gradient_on_a_card_are_the_tapes() {
    let cuda = card();
    let on = On(&cuda);
    let mut draws = Draws::new(1);
    for pairs in [1, 3, 200, 700] {
        let mut logits = draws.floats(2 * pairs, 3.0);
        // Finite and exact for logits of any size.
        logits[0] = -200.0;
        logits[pairs] = 90.0;
        let inputs = Inputs::new(&[("logits", 1, &logits)]);
        let (value, gradients) = inputs.run(&[1.0], &["logits"], |tape, parameters| {
            let logits = tape.param(parameters.find("logits").unwrap());
            let (happened, made_up) = (tape.rows(logits, 0..pairs), tape.rows(logits, pairs..2 * pairs));
            let positive = tape.bce_with_logits(happened, &vec![1.0; pairs]);
            let negative = tape.bce_with_logits(made_up, &vec![0.0; pairs]);
            tape.add(positive, negative)
        });
        let (on_logits, mut d, mut loss) = (on.copy(&logits), on.room(2 * pairs), on.room(1));
        link_loss(on.place(), &on_logits, &mut d, &mut loss).unwrap();
        near(loss.copy_to_host().unwrap()[0], value[0], "the loss");
        for (found, expected) in d.copy_to_host().unwrap().into_iter().zip(&gradients[0]) {
            near(found, *expected, "a gradient");
        }
        let mut short = on.room(2 * pairs - 1);
        let error = link_loss(on.place(), &on_logits, &mut short, &mut loss).unwrap_err().to_string();
        assert!(error.contains("gradients: "), "{error}");
        let error = link_loss(on.place(), &short, &mut d, &mut loss).unwrap_err().to_string();
        assert!(error.contains("are not two of each pair"), "{error}");
    }
}

#[test]
fn the_cross_entropy_of_one_target_on_a_card_is_the_tapes() {
    let cuda = card();
    let on = On(&cuda);
    let mut draws = Draws::new(4);
    for (count, target, scale) in [(1, 1.0, 1.0), (3, 0.0, 2.5), (700, 1.0, -0.5), (301, 0.25, 1.0)] {
        let mut logits = draws.floats(count + 2, 3.0);
        // Those behind do not count.
        let counted = logits.split_at_mut(count).0;
        counted[0] = if target > 0.0 { -200.0 } else { 90.0 };
        let inputs = Inputs::new(&[("logits", 1, counted)]);
        let (value, gradients) = inputs.run(&[scale], &["logits"], |tape, parameters| {
            let logits = tape.param(parameters.find("logits").unwrap());
            tape.bce_with_logits(logits, &vec![target; count])
        });
        let (on_logits, given, mut loss) = (on.copy(&logits), on.copy(&[scale]), on.room(1));
        bce(on.place(), &on_logits, target, count, &mut loss).unwrap();
        near(loss.copy_to_host().unwrap()[0], value[0], "the loss");
        let mut d = on.room(count + 1);
        bce_backward(on.place(), &on_logits, target, &given, count, &mut d).unwrap();
        let d = d.copy_to_host().unwrap();
        for (found, expected) in d.iter().zip(&gradients[0]) {
            near(*found, *expected, "a gradient");
        }
        assert!(d[count].is_nan());
        let error = bce(on.place(), &on_logits, target, count + 3, &mut loss).unwrap_err().to_string();
        assert!(error.contains("logits: "), "{error}");
        let error = bce(on.place(), &on_logits, target, 0, &mut loss).unwrap_err().to_string();
        assert!(error.contains("values to average: 0 values"), "{error}");
        let mut short = on.room(count - 1);
        let error = bce_backward(on.place(), &on_logits, target, &given, count, &mut short);
        assert!(error.unwrap_err().to_string().contains("gradients: "));
        let error = bce_backward(on.place(), &on_logits, target, &on.room(0), count, &mut short);
        assert!(error.unwrap_err().to_string().contains("the loss's gradient: "));
    }
}

/// Norm and factor of some gradients, given the loss.
fn bound(on: On<'_>, gradients: &[Vec<f32>], most: f32, loss: f32) -> CudaBuffer<f32> {
    let test = "a test";
    let (cuda, stream) = on.place();
    let pieces: usize = gradients.iter().map(|values| squares_pieces(values.len())).sum();
    let mut partials = CudaBuffer::from_slice(cuda, stream, &vec![f64::NAN; pieces], test).unwrap();
    let mut first = 0;
    for values in gradients {
        squares(on.place(), &on.copy(values), (&mut partials, first)).unwrap();
        first += squares_pieces(values.len());
    }
    let mut bound = on.room(2);
    bound_norm(on.place(), &partials, most, &on.copy(&[loss]), &mut bound).unwrap();
    let error = squares(on.place(), &on.copy(&[1.0]), (&mut partials, pieces)).unwrap_err().to_string();
    assert!(error.contains("partial sums: "), "{error}");
    bound
}

#[test]
fn the_norm_of_gradients_is_bounded_on_a_card() {
    let cuda = card();
    let on = On(&cuda);
    let mut draws = Draws::new(2);
    for sizes in [vec![1], vec![4_097, 3, 8_192], vec![20_000, 1, 300]] {
        let gradients: Vec<Vec<f32>> = sizes.iter().map(|size| draws.floats(*size, 1.0)).collect();
        let all = || gradients.iter().flatten().map(|value| f64::from(*value));
        let norm = all().map(|value| value * value).sum::<f64>().sqrt() as f32;
        for most in [norm / 4.0, norm * 2.0] {
            let found = bound(on, &gradients, most, 0.7).copy_to_host().unwrap();
            near(found[0], norm, "the norm");
            near(found[1], (most / norm).min(1.0), "the factor");
        }
    }
    let factor =
        |gradients: &[f32], loss| bound(on, &[gradients.to_vec()], 5.0, loss).copy_to_host().unwrap()[1];
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

#[test]
fn a_bounded_step_of_adam_is_that_of_bounded_gradients_and_none_where_they_are_not_finite() {
    let cuda = card();
    let on = On(&cuda);
    let (start, given, steps, _) = moved_by_adam(700, 3);
    let zeros = vec![0.0_f32; 700];
    let mut one = [on.copy(&start), on.copy(&zeros), on.copy(&zeros)];
    let mut other = [on.copy(&start), on.copy(&zeros), on.copy(&zeros)];
    for (step, gradient) in steps.iter().zip(given.chunks(700)) {
        let &[beta1, beta2, size, root, eps, shrink] = step;
        let step = AdamStep { beta1, beta2, size, root, eps, shrink };
        let factor = 0.3_f32;
        let scaled: Vec<f32> = gradient.iter().map(|value| value * factor).collect();
        let [weights, first, second] = &mut one;
        adam(on.place(), step, weights, (&mut *first, &mut *second), &on.copy(&scaled)).unwrap();
        let [weights, first, second] = &mut other;
        let given = on.copy(gradient);
        let bound = on.copy(&[9.0, factor]);
        adam_bounded(on.place(), step, weights, (&mut *first, &mut *second), &given, &bound).unwrap();
        // What follows changes nothing.
        let (none, nothing) = (on.copy(&[f32::NAN; 700]), on.copy(&[f32::NAN, 0.0]));
        let [weights, first, second] = &mut other;
        adam_bounded(on.place(), step, weights, (&mut *first, &mut *second), &none, &nothing).unwrap();
        let error =
            adam_bounded(on.place(), step, weights, (&mut *first, &mut *second), &given, &on.copy(&[1.0]));
        assert!(error.unwrap_err().to_string().contains("norm and factor: 1 values"));
        let error = adam_bounded(on.place(), step, weights, (&mut *first, &mut *second), &bound, &bound);
        assert!(error.unwrap_err().to_string().contains("the gradient: 2 values"));
    }
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one.copy_to_host().unwrap(), other.copy_to_host().unwrap());
    }
}
