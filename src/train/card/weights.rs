//! What is learned of a TGN, on a card: [`Each`] has something for every parameter, [`CardWeights`] the weights, their
//! gradients and what Adam remembers of those.

use crate::device::cuda::layers::{Place, adam_bounded, bound_norm, squares, squares_pieces};
use crate::device::cuda::twins::AdamStep;
use crate::device::cuda::{CudaBuffer, CudaError};
use crate::nn::{AdamOptions, Parameters};

macro_rules! parameters {
    ($($field:ident = $name:literal),* $(,)?) => {
        /// One of something for each parameter of a TGN.
        pub(super) struct Each<T> { $(pub $field: T),* }

        impl<T> Each<T> {
            /// What `make` makes for each name.
            pub fn of<E>(mut make: impl FnMut(&'static str) -> Result<T, E>) -> Result<Self, E> {
                Ok(Self { $($field: make($name)?),* })
            }

            /// All of them, by name.
            pub fn list(&self) -> Vec<(&'static str, &T)> {
                vec![$(($name, &self.$field)),*]
            }

            /// All of them, in the same order.
            pub fn list_mut(&mut self) -> Vec<&mut T> {
                vec![$(&mut self.$field),*]
            }
        }
    };
}

parameters! {
    w_ih = "memory.w_ih", w_hh = "memory.w_hh", b_ih = "memory.b_ih", b_hh = "memory.b_hh",
    w_q = "attention.w_q", w_k = "attention.w_k", w_v = "attention.w_v", w_o = "attention.w_o",
    b_o = "attention.b_o", gamma = "attention.gamma", beta = "attention.beta",
    merge_w_a = "merge.w_a", merge_b_a = "merge.b_a", merge_w_b = "merge.w_b", merge_b_b = "merge.b_b",
    link_w_a = "link.w_a", link_b_a = "link.b_a", link_w_b = "link.w_b", link_b_b = "link.b_b",
}

/// Weights, gradients and moments.
pub(super) struct CardWeights {
    pub weights: Each<CudaBuffer<f32>>,
    pub gradients: Each<CudaBuffer<f32>>,
    first: Each<CudaBuffer<f32>>,
    second: Each<CudaBuffer<f32>>,
    squares: CudaBuffer<f64>,
    /// Norm of all gradients, and the factor that bounds it.
    bound: CudaBuffer<f32>,
    steps: u64,
}

/// What became of a step.
pub(super) enum Learned {
    /// Weights moved.
    Moved,
    /// They did not: gradients of this norm are not finite, or the loss is not.
    Refused(f32),
}

impl CardWeights {
    /// A copy of `parameters`, and an optimizer without history.
    ///
    /// # Errors
    /// The first name that is not among them, or the card's.
    pub fn copy(
        (cuda, stream): Place<'_>,
        parameters: &Parameters,
    ) -> Result<Result<Self, &'static str>, CudaError> {
        let operation = "weights of a TGN";
        let given = Each::of(|name| parameters.find(name).map(|id| parameters.get(id).data()).ok_or(name));
        let given = match given {
            Ok(given) => given,
            Err(name) => return Ok(Err(name)),
        };
        let mut values = given.list().into_iter();
        let weights = Each::of(|_| {
            let values = values.next().map_or(&[][..], |(_, values)| values);
            CudaBuffer::from_slice(cuda, stream, values, operation)
        })?;
        let zeros = || {
            let mut like = weights.list().into_iter();
            Each::of(|_| {
                let len = like.next().map_or(0, |(_, values)| values.len());
                CudaBuffer::zeros(cuda, stream, len, operation)
            })
        };
        let pieces: usize = weights.list().iter().map(|(_, values)| squares_pieces(values.len())).sum();
        Ok(Ok(Self {
            gradients: zeros()?,
            first: zeros()?,
            second: zeros()?,
            squares: CudaBuffer::zeros(cuda, stream, pieces, operation)?,
            bound: CudaBuffer::zeros(cuda, stream, 2, operation)?,
            steps: 0,
            weights,
        }))
    }

    /// Steps that moved weights.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Asks for a step of Adam by the gradients at hand, their norm `most` at most; none happens where that or `loss`
    /// is not finite. Does not wait.
    ///
    /// # Errors
    /// The card's.
    pub fn learn(
        &mut self,
        place: Place<'_>,
        (rate, most): (f32, f32),
        loss: &CudaBuffer<f32>,
    ) -> Result<(), CudaError> {
        let mut first = 0;
        for (_, gradient) in self.gradients.list() {
            squares(place, gradient, (&mut self.squares, first))?;
            first += squares_pieces(gradient.len());
        }
        bound_norm(place, &self.squares, most, loss, &mut self.bound)?;
        let step = adam_step(self.steps + 1, rate);
        let moments = self.first.list_mut().into_iter().zip(self.second.list_mut());
        let weights = self.weights.list_mut().into_iter().zip(self.gradients.list());
        for ((weights, (_, gradient)), (first, second)) in weights.zip(moments) {
            adam_bounded(place, step, weights, (first, second), gradient, &self.bound)?;
        }
        Ok(())
    }

    /// What became of the step that was asked for. Waits.
    ///
    /// # Errors
    /// The card's.
    pub fn learned(&mut self) -> Result<Learned, CudaError> {
        let bound = self.bound.copy_to_host()?;
        if bound.get(1) == Some(&0.0) {
            return Ok(Learned::Refused(bound[0]));
        }
        self.steps += 1;
        Ok(Learned::Moved)
    }
}

/// The numbers of step `number`, from 1.
fn adam_step(number: u64, learning_rate: f32) -> AdamStep {
    let options = AdamOptions { learning_rate, ..AdamOptions::default() };
    let AdamOptions { beta1, beta2, eps, .. } = options;
    let [size, root, shrink] = options.of_step(number);
    AdamStep { beta1, beta2, size, root, eps, shrink }
}
