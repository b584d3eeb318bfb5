//! The token mixing block on a GPU against the tape: its forward bit for bit, its gradients to rounding.

use evergraph::device::cuda::CudaError;
use evergraph::device::cuda::layers::{SlotMixer, mixing_backward, mixing_forward};
use evergraph::device::cuda::twins::Mask;
use evergraph::nn::SlotMixing;

use super::layers::{On, agree, summed, wide};
use super::{Draws, gpu};
use crate::kernels_host::nn::{Inputs, twin_fuses};

const NAMES: [&str; 7] = ["x", "gamma", "beta", "w_a", "b_a", "w_b", "b_b"];

#[track_caller]
fn refused(result: Result<(), CudaError>, words: &str) {
    let message = result.unwrap_err().to_string();
    assert!(message.contains(words), "{message}");
}

#[test]
fn slots_are_mixed_forward_and_back_on_a_gpu_like_on_the_tape() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(1);
    for (seeds, slots, hidden, columns, dropout) in [
        (1, 1, 1, 1, 0.0),
        (9, 10, 5, 33, 0.1),
        (7, 20, 10, 100, 0.5),
        (40, 3, 16, 17, 0.2),
        (3, 30, 15, 130, 0.0),
        (11, 32, 32, 64, 0.25),
    ] {
        let rows = seeds * slots * columns;
        let (x, d) = (draws.floats(rows, 2.0), draws.floats(rows, 1.0));
        let [gamma, beta, b_b] = [1.0, 0.3, 0.3].map(|scale| draws.floats(slots, scale));
        let (w_a, w_b) = (draws.floats(hidden * slots, 0.4), draws.floats(hidden * slots, 0.4));
        let (b_a, eps, key) = (draws.floats(hidden, 0.3), 1e-5, [draws.word(), draws.word(), 5]);
        let widths = [columns, slots, slots, slots, hidden, hidden, slots];
        let values: [&[f32]; 7] = [&x, &gamma, &beta, &w_a, &b_a, &w_b, &b_b];
        let inputs: Vec<(&str, usize, &[f32])> =
            NAMES.into_iter().zip(widths).zip(values).map(|((name, width), of)| (name, width, of)).collect();
        let (value, gradients) = Inputs::new(&inputs).run(&d, &NAMES, |tape, parameters| {
            let [x, gamma, beta, w_a, b_a, w_b, b_b] = NAMES.map(|name| parameters.find(name).unwrap());
            let x = tape.param(x);
            tape.mix_slots(x, SlotMixing { gamma, beta, w_a, b_a, w_b, b_b, eps, dropout, key })
        });
        let [x, gamma, beta, w_a, b_a, w_b, b_b] = values.map(|values| on.copy(values));
        let masks = [Mask::new(dropout, key), Mask::new(dropout, [key[0], key[1], key[2] + 1])];
        let mixer = SlotMixer {
            slots,
            hidden,
            columns,
            gamma: &gamma,
            beta: &beta,
            w_a: &w_a,
            b_a: &b_a,
            w_b: &w_b,
            b_b: &b_b,
            eps,
            masks,
        };
        let mut y = on.room(rows);
        mixing_forward(on.context(), &mixer, seeds, &x, &mut y).unwrap();
        agree(&y, wide(&value), "rows");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let same = bits(&y.copy_to_host().unwrap()) == bits(&value);
        assert!(same || !twin_fuses(), "{seeds} seeds with {slots} slots of {columns}, {hidden} hidden");

        let (pieces, parameters) = (SlotMixer::pieces(seeds, mixer.columns), mixer.parameters());
        let (mut d, mut partials) = (on.copy(&d), on.room(pieces * parameters));
        mixing_backward(on.context(), &mixer, seeds, &x, &mut d, &mut partials).unwrap();
        agree(&d, wide(&gradients[0]), "gradient of rows");
        let sums = summed(&cuda, [pieces, parameters], &partials);
        agree(&sums, wide(&gradients[1..].concat()), "gradients of all parameters");
        // Each by its own measure, since some are much larger than others.
        let mut rest = &sums.copy_to_host().unwrap()[..];
        for (name, expected) in NAMES[1..].iter().zip(&gradients[1..]) {
            let (found, more) = rest.split_at(expected.len());
            agree(&on.copy(found), wide(expected), name);
            rest = more;
        }

        let short = &mut on.room(rows - 1);
        refused(mixing_forward(on.context(), &mixer, seeds, &x, short), "results: ");
        refused(mixing_forward(on.context(), &mixer, seeds + 1, &x, &mut y), "rows: ");
        refused(mixing_backward(on.context(), &mixer, seeds, &x, short, &mut partials), "gradients: ");
        let few = &mut on.room(pieces * parameters - 1);
        refused(mixing_backward(on.context(), &mixer, seeds, &x, &mut d, few), "partial sums: ");
        let wider = SlotMixer { slots: slots + 1, ..mixer };
        let words = if slots == 32 { "both are at most 32" } else { "gamma: " };
        refused(mixing_forward(on.context(), &wider, seeds, &x, &mut y), words);
        let none = SlotMixer { slots: 0, ..mixer };
        refused(mixing_forward(on.context(), &none, seeds, &x, &mut y), "0 slots");
    }
}
