//! The token mixing block of an MLP-Mixer (Tolstikhin et al., 2021): the K slots of a seed exchange what they hold,
//! every column for itself, with the same weights in each.
//!
//! ```text
//! X [K, c] of each seed       N = norm of each column over the K slots, times gamma_k, plus beta_k
//! Y = X + mask(W_b mask(gelu(W_a N + b_a)) + b_b)          W_a [hidden, K], W_b [K, hidden]
//! ```
//! Backward saves nothing but its arguments.

use super::elementwise::accumulate_each;
use crate::device::Device;
use crate::device::cuda::CudaError;
use crate::device::cuda::layers::{SlotMixer, mixing_backward, mixing_forward};
use crate::device::cuda::twins::Mask;
use crate::nn::cpu::slot_mixing::{self as cpu, Inputs, Shape};
use crate::nn::cuda::sums::Sums;
use crate::nn::{ParamId, Parameters, Tape, Var};

/// Arguments of [`Tape::mix_slots`] for seeds with K slots.
#[derive(Clone, Copy, Debug)]
pub struct SlotMixing {
    /// Scale of each slot after the norm, `[1, K]`.
    pub gamma: ParamId,
    /// Shift of each slot after the norm, `[1, K]`.
    pub beta: ParamId,
    /// First layer, `[hidden, K]`.
    pub w_a: ParamId,
    /// Its bias, `[1, hidden]`.
    pub b_a: ParamId,
    /// Second layer, `[K, hidden]`.
    pub w_b: ParamId,
    /// Its bias, `[1, K]`.
    pub b_b: ParamId,
    /// Added to the variance.
    pub eps: f32,
    /// Chance of each value behind a layer to be dropped, in `[0, 1)`.
    pub dropout: f32,
    /// Names the masks; the last word is that of the first layer's, and the next number that of the second's.
    pub key: [u64; 3],
}

impl SlotMixing {
    fn ids(&self) -> [ParamId; 6] {
        [self.gamma, self.beta, self.w_a, self.b_a, self.w_b, self.b_b]
    }

    fn inputs<'a>(&self, parameters: &'a Parameters, training: bool) -> Inputs<'a> {
        let [gamma, beta, w_a, b_a, w_b, b_b] = self.ids().map(|id| parameters.get(id).data());
        let [seed, step, first] = self.key;
        let keys = [[seed, step, first], [seed, step, first + 1]];
        let dropout = if training { self.dropout } else { 0.0 };
        Inputs { gamma, beta, w_a, b_a, w_b, b_b, eps: self.eps, dropout, keys }
    }

    /// The same on a GPU, for rows of `columns` values.
    fn on_gpu<'a>(
        &self,
        parameters: &'a Parameters,
        training: bool,
        columns: usize,
    ) -> Result<SlotMixer<'a>, CudaError> {
        let [seed, step, first] = self.key;
        let dropout = if training { self.dropout } else { 0.0 };
        let (hidden, slots) = parameters.get(self.w_a).shape();
        let values = |id| parameters.get(id).on_gpu();
        Ok(SlotMixer {
            slots,
            hidden,
            columns,
            gamma: values(self.gamma)?,
            beta: values(self.beta)?,
            w_a: values(self.w_a)?,
            b_a: values(self.b_a)?,
            w_b: values(self.w_b)?,
            b_b: values(self.b_b)?,
            eps: self.eps,
            masks: [first, first + 1].map(|number| Mask::new(dropout, [seed, step, number])),
        })
    }

    /// Sizes for rows of `cols` values.
    fn shape(&self, parameters: &Parameters, cols: usize) -> Shape {
        let (hidden, slots) = parameters.get(self.w_a).shape();
        Shape { slots, cols, hidden }
    }

    fn check(&self, parameters: &Parameters, rows: usize, cols: usize) -> Shape {
        let s = self.shape(parameters, cols);
        assert!((0.0..1.0).contains(&self.dropout), "dropout of {}", self.dropout);
        assert_eq!(rows % s.slots.max(1), 0, "mix_slots: {rows} rows in groups of {}", s.slots);
        assert_eq!(parameters.get(self.w_b).shape(), (s.slots, s.hidden), "mix_slots: w_b");
        let sizes = self.ids().iter().map(|id| parameters.get(*id).data_len()).sum::<usize>();
        assert_eq!(sizes, s.parameters(), "mix_slots: norm and biases for {} slots", s.slots);
        s
    }
}

impl Tape<'_> {
    /// Mixes the K rows of each seed, `[seeds * K, c]` to the same shape; see the formula above. K is that of the
    /// weights.
    ///
    /// # Panics
    /// If the shapes do not agree, or `dropout` is outside `[0, 1)`.
    pub fn mix_slots(&mut self, x: Var, args: SlotMixing) -> Var {
        let (rows, cols) = self.value(x).shape();
        let (parameters, training) = (self.parameters(), self.training());
        let shape = args.check(parameters, rows, cols);
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => {
                let inputs = args.inputs(parameters, training);
                cpu::forward(shape, inputs, self.value(x).data(), y.data_mut());
            }
            Device::Cuda(work) => work.run(|context| {
                let (mixer, x) = (args.on_gpu(parameters, training, cols)?, self.value(x).on_gpu()?);
                mixing_forward(context, &mixer, rows / shape.slots.max(1), x, y.on_gpu_mut()?)
            }),
        }
        self.push_with(y, training, move |_, mut d, walk| {
            let parameters = walk.parameters();
            let ((rows, cols), value) = (d.shape(), walk.value(x));
            let shape = args.shape(parameters, cols);
            match walk.device {
                Device::Cpu => {
                    let inputs = args.inputs(parameters, true);
                    let sums = cpu::backward(shape, inputs, value.data(), d.data_mut());
                    accumulate_each(walk, &args.ids(), &sums);
                }
                Device::Cuda(work) => {
                    let seeds = rows / shape.slots.max(1);
                    let pieces = SlotMixer::pieces(seeds, cols);
                    let sums = Sums::of(work, [pieces, shape.parameters()], |context, partials| {
                        let mixer = args.on_gpu(parameters, true, cols)?;
                        mixing_backward(context, &mixer, seeds, value.on_gpu()?, d.on_gpu_mut()?, partials)
                    });
                    sums.finish(walk, &args.ids());
                }
            }
            walk.flow(x, d);
        })
    }
}
