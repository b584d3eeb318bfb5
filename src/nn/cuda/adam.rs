//! A step of Adam by gradients the norm of which is bounded, decided on the card.

use std::sync::Arc;

use crate::device::cuda::layers::{adam_bounded, bound_norm, squares, squares_pieces};
use crate::device::cuda::twins::AdamStep;
use crate::device::cuda::{CudaWork, Lent};
use crate::nn::Tensor;

/// Asks for a step by `gradients`, whose norm counts as `most` at most. Gives their norm and the factor they were taken
/// with, which is 0 where norm or `loss` is not finite: then nothing happened. Does not wait.
pub fn step(
    work: &Arc<CudaWork>,
    step: AdamStep,
    weights: &mut [Tensor],
    (first, second): (&mut [Tensor], &mut [Tensor]),
    gradients: &[Tensor],
    (most, loss): (f32, &Tensor),
) -> Lent<f32> {
    let pieces = gradients.iter().map(|gradient| squares_pieces(gradient.data_len())).sum();
    let (mut partials, mut bound) = (work.lend::<f64>(pieces), work.lend::<f32>(2));
    work.run(|place| {
        let mut at = 0;
        for gradient in gradients {
            squares(place, gradient.on_card()?, (partials.get_mut()?, at))?;
            at += squares_pieces(gradient.data_len());
        }
        bound_norm(place, partials.get()?, most, loss.on_card()?, bound.get_mut()?)?;
        let moments = first.iter_mut().zip(second);
        for ((w, g), (m, v)) in weights.iter_mut().zip(gradients).zip(moments) {
            let moments = (m.on_card_mut()?, v.on_card_mut()?);
            adam_bounded(place, step, w.on_card_mut()?, moments, g.on_card()?, bound.get()?)?;
        }
        Ok(())
    });
    bound
}
