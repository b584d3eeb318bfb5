//! Mixing the slots of each seed, column by column, as `kernels/mixing.cu`, which has the formulas.

#![allow(unsafe_code)]

use super::{StreamContext, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, product, takes, to_u32};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::{Address, MIXING_PIECE, MIXING_THREADS, MIXING_TILE, Mask, Mixing};

/// mixing, seeds, x, y.
const FORWARD: &[usize] = takes![Mixing, u64, Address, Address];
/// mixing, seeds, x, d, partials.
const BACKWARD: &[usize] = takes![Mixing, u64, Address, Address, Address];

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    Entry { name: "mixing_forward_16_16", parameters: FORWARD },
    Entry { name: "mixing_forward_32_16", parameters: FORWARD },
    Entry { name: "mixing_forward_32_32", parameters: FORWARD },
    Entry { name: "mixing_backward_16_16", parameters: BACKWARD },
    Entry { name: "mixing_backward_32_16", parameters: BACKWARD },
    Entry { name: "mixing_backward_32_32", parameters: BACKWARD },
];

/// Slots and hidden values at most, and the kernels for them.
const KERNELS: [(usize, usize, &str, &str); 3] = [
    (16, 16, "mixing_forward_16_16", "mixing_backward_16_16"),
    (32, 16, "mixing_forward_32_16", "mixing_backward_32_16"),
    (32, 32, "mixing_forward_32_32", "mixing_backward_32_32"),
];

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

    /// Values of the slots of so many seeds, if all sizes fit, and the kernels' names.
    fn check(
        &self,
        operation: &'static str,
        seeds: usize,
    ) -> Result<(usize, &'static str, &'static str), CudaError> {
        let (slots, hidden) = (self.slots, self.hidden);
        let kernels = KERNELS.iter().find(|(most, wide, ..)| slots <= *most && hidden <= *wide);
        let Some(&(_, _, forward, backward)) = kernels.filter(|_| slots > 0) else {
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
        Ok((product(operation, "rows", &[seeds, slots, self.columns])?, forward, backward))
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

/// `y`, `[seeds * K, columns]`: the rows of `x` mixed within each seed. Does not wait.
///
/// # Errors
/// More slots or hidden values than [`MIXING_MAX`], no slot, buffers that are too short, a buffer of another stream, or
/// the driver's.
pub fn mixing_forward(
    (cuda, stream): StreamContext<'_>,
    mixer: &SlotMixer<'_>,
    seeds: usize,
    x: &CudaBuffer<f32>,
    y: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "mixing slots";
    let (all, kernel, _) = mixer.check(operation, seeds)?;
    check_len(operation, &[("rows", x.len(), all), ("results", y.len(), all)])?;
    if all == 0 {
        return Ok(());
    }
    let mut launch = Launch::new(cuda, stream, operation);
    let mixing = mixer.twin(&mut launch, operation)?;
    let launch = launch.number(mixing).number(seeds as u64).reads(x).writes(y);
    let grid = grid(cuda, (seeds * mixer.columns) as u64, MIXING_THREADS);
    // SAFETY: every seed has its rows and every parameter its values; a block has room for as many slots and hidden
    // values, and the threads that the kernel is made for.
    unsafe { launch.run(kernel, grid, || mixer.sizes(seeds)) }
}

/// `d`, `[seeds * K, columns]`, the gradient of the result, becomes that of `x`; `partials`, `[pieces, parameters]`,
/// sums of the gradients of gamma, beta, both layers and their biases, in the order of [`SlotMixer`]. Does not wait.
///
/// # Errors
/// As for [`mixing_forward`].
pub fn mixing_backward(
    (cuda, stream): StreamContext<'_>,
    mixer: &SlotMixer<'_>,
    seeds: usize,
    x: &CudaBuffer<f32>,
    d: &mut CudaBuffer<f32>,
    partials: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "mixing slots backward";
    let (all, _, kernel) = mixer.check(operation, seeds)?;
    let pieces = SlotMixer::pieces(seeds, mixer.columns);
    let sums = product(operation, "partial sums", &[pieces, mixer.parameters()])?;
    check_len(
        operation,
        &[("rows", x.len(), all), ("gradients", d.len(), all), ("partial sums", partials.len(), sums)],
    )?;
    if all == 0 {
        return Ok(());
    }
    let mut launch = Launch::new(cuda, stream, operation);
    let mixing = mixer.twin(&mut launch, operation)?;
    let launch = launch.number(mixing).number(seeds as u64).reads(x).writes(d).writes(partials);
    let grid = grid(cuda, pieces as u64 * u64::from(MIXING_TILE), MIXING_TILE);
    // SAFETY: as for the forward; every piece has its sums.
    unsafe { launch.run(kernel, grid, || mixer.sizes(seeds)) }
}

impl SlotMixer<'_> {
    fn sizes(&self, seeds: usize) -> String {
        format!("{seeds} seeds, {} slots of {}, {} hidden", self.slots, self.columns, self.hidden)
    }
}
