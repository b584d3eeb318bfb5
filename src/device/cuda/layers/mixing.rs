//! Mixing the slots of each seed, column by column, as `kernels/mixing.cu`, which has the formulas.

use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, product, to_u32};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::twins::{MIXING_PIECE, MIXING_THREADS, MIXING_TILE, Mask, Mixing};

/// Slots and hidden values at most, of each kernel.
const KERNELS: [[usize; 2]; 3] = [[16, 16], [32, 16], [32, 32]];

/// Slots per seed, and hidden values of a column, at most.
pub const MIXING_MAX: usize = 32;

/// Weights and sizes of the block: K slots of `columns` values per seed.
#[derive(Clone, Copy)]
pub struct SlotMixer<'a> {
    /// K.
    pub slots: usize,
    /// Values between the two layers.
    pub hidden: usize,
    /// Values of a slot.
    pub columns: usize,
    /// Scale behind the norm, `[K]`.
    pub gamma: &'a CudaBuffer<f32>,
    /// Shift behind the norm, `[K]`.
    pub beta: &'a CudaBuffer<f32>,
    /// First layer, `[hidden, K]`.
    pub w_a: &'a CudaBuffer<f32>,
    /// Its bias, `[hidden]`.
    pub b_a: &'a CudaBuffer<f32>,
    /// Second layer, `[K, hidden]`.
    pub w_b: &'a CudaBuffer<f32>,
    /// Its bias, `[K]`.
    pub b_b: &'a CudaBuffer<f32>,
    /// Added to the variance.
    pub eps: f32,
    /// Dropout behind the two layers.
    pub masks: [Mask; 2],
}

impl<'a> SlotMixer<'a> {
    /// Values of all six parameters together.
    #[must_use]
    pub fn parameters(&self) -> usize {
        2 * self.slots * self.hidden + 3 * self.slots + self.hidden
    }

    /// Rows of partial sums that [`mixing_backward`] makes for so many seeds of so many columns.
    #[must_use]
    pub fn pieces(seeds: usize, columns: usize) -> usize {
        seeds.saturating_mul(columns).div_ceil(MIXING_PIECE as usize)
    }

    /// Values of the slots of so many seeds, if all sizes fit, and which kernel it is.
    fn check(&self, operation: &'static str, seeds: usize) -> Result<(usize, usize), CudaError> {
        let (slots, hidden) = (self.slots, self.hidden);
        let kernel = KERNELS.iter().position(|[most, wide]| slots <= *most && hidden <= *wide);
        let Some(kernel) = kernel.filter(|_| slots > 0) else {
            let mismatch = format!("{slots} slots and {hidden} hidden values; both are at most {MIXING_MAX}");
            return Err(CudaError::Arguments { operation, mismatch });
        };
        check_len(
            operation,
            &[
                ("gamma", self.gamma.len(), slots),
                ("beta", self.beta.len(), slots),
                ("the first layer", self.w_a.len(), hidden * slots),
                ("its bias", self.b_a.len(), hidden),
                ("the second layer", self.w_b.len(), slots * hidden),
                ("the second bias", self.b_b.len(), slots),
            ],
        )?;
        Ok((product(operation, "rows", &[seeds, slots, self.columns])?, kernel))
    }

    /// As a kernel has it.
    fn twin(&self, launch: &mut Launch<'a>, operation: &'static str) -> Result<Mixing, CudaError> {
        let [first, second] = self.masks;
        Ok(Mixing {
            gamma: launch.reading(self.gamma),
            beta: launch.reading(self.beta),
            w_a: launch.reading(self.w_a),
            b_a: launch.reading(self.b_a),
            w_b: launch.reading(self.w_b),
            b_b: launch.reading(self.b_b),
            first,
            second,
            eps: self.eps,
            slots: to_u32(operation, "slots", self.slots)?,
            hidden: to_u32(operation, "hidden values", self.hidden)?,
            columns: to_u32(operation, "columns", self.columns)?,
        })
    }
}

kernels! {
    /// `y`, `[seeds * K, columns]`: the rows of `x` mixed within each seed. There are [`MIXING_MAX`] slots and hidden
    /// values at most.
    pub fn mixing_forward = mixing_forward_16_16 | mixing_forward_32_16 | mixing_forward_32_32(
        mixer: &SlotMixer<'_>, seeds: usize, x: &CudaBuffer<f32>, y: &mut CudaBuffer<f32>,
    ) {
        let operation = "mixing slots";
        let (all, kernel) = mixer.check(operation, seeds)?;
        pass built(Mixing, |launch| mixer.twin(&mut launch, operation)?), u64(seeds), read(x, all, "rows"),
            write(y, all, "results");
        choose kernel;
        grid seeds * mixer.columns, MIXING_THREADS;
        text "{seeds} seeds, {} slots of {}, {} hidden", mixer.slots, mixer.columns, mixer.hidden;
        safe "Every seed has its rows and every parameter its values; a block has room for as many slots and hidden
              values, and the threads that the kernel is made for.";
    }

    /// `d`, `[seeds * K, columns]`, the gradient of the result, becomes that of `x`; `partials`, `[pieces,
    /// parameters]`, sums of the gradients of gamma, beta, both layers and their biases, in the order of [`SlotMixer`].
    pub fn mixing_backward = mixing_backward_16_16 | mixing_backward_32_16 | mixing_backward_32_32(
        mixer: &SlotMixer<'_>, seeds: usize, x: &CudaBuffer<f32>, d: &mut CudaBuffer<f32>,
        partials: &mut CudaBuffer<f32>,
    ) {
        let operation = "mixing slots backward";
        let (all, kernel) = mixer.check(operation, seeds)?;
        let pieces = SlotMixer::pieces(seeds, mixer.columns);
        let sums = product(operation, "partial sums", &[pieces, mixer.parameters()])?;
        pass built(Mixing, |launch| mixer.twin(&mut launch, operation)?), u64(seeds), read(x, all, "rows"),
            write(d, all, "gradients"), write(partials, sums, "partial sums");
        choose kernel;
        grid pieces * MIXING_TILE as usize, MIXING_TILE;
        text "{seeds} seeds, {} slots of {}, {} hidden", mixer.slots, mixer.columns, mixer.hidden;
        safe "As for [`mixing_forward`]; every piece has its sums.";
    }
}
