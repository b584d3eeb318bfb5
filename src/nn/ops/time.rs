//! The encoding of time differences, `cos(w * dt + b)`, with fixed or learned `w` and `b`.

use std::sync::Arc;

use super::elementwise::accumulate_each;
use crate::device::Device;
use crate::device::cuda::layers::{pieces_of, time_backward, time_encode};
use crate::nn::cpu::time as cpu;
use crate::nn::cuda::sums::Sums;
use crate::nn::cuda::time::Waves;
use crate::nn::list::Sent;
use crate::nn::tape::Walk;
use crate::nn::{List, ParamId, Parameters, Tape, Tensor, Var};

/// Frequencies and phases of a time encoding.
#[derive(Clone, Debug)]
pub enum TimeEncoder {
    /// They stay as they are; no gradient.
    Fixed {
        /// Frequencies.
        w: Arc<[f32]>,
        /// Phases, as many.
        b: Arc<[f32]>,
    },
    /// They are learned.
    Trained {
        /// Frequencies, `[1, dim]` (or `[dim, 1]`).
        w: ParamId,
        /// Phases, as many.
        b: ParamId,
    },
}

impl TimeEncoder {
    /// The usual fixed encoding: frequencies fall from 1 to 1e-9 geometrically, phases are 0.
    #[must_use]
    pub fn fixed(dim: usize) -> Self {
        Self::of_ticks(dim, 1)
    }

    /// The same of differences in a unit of which so many are a second: its frequencies are by the second.
    #[must_use]
    pub fn of_ticks(dim: usize, per_second: u32) -> Self {
        let by_tick = |by_second: f32| (f64::from(by_second) / f64::from(per_second)) as f32;
        let w = Self::frequencies(dim).into_iter().map(by_tick).collect();
        Self::Fixed { w, b: vec![0.0; dim].into() }
    }

    /// `dim` frequencies `10^(-9 j / (dim - 1))`.
    #[must_use]
    pub fn frequencies(dim: usize) -> Vec<f32> {
        let last = dim.saturating_sub(1).max(1) as f64;
        (0..dim).map(|j| 10f64.powf(-9.0 * j as f64 / last) as f32).collect()
    }

    /// Number of columns of the encoding.
    #[must_use]
    pub fn dim(&self, parameters: &Parameters) -> usize {
        match self {
            Self::Fixed { w, .. } => w.len(),
            Self::Trained { w, .. } => parameters.get(*w).data_len(),
        }
    }

    /// Frequencies and phases.
    pub(super) fn weights<'a>(&'a self, parameters: &'a Parameters) -> (&'a [f32], &'a [f32]) {
        let (w, b) = match self {
            Self::Fixed { w, b } => (&w[..], &b[..]),
            Self::Trained { w, b } => (parameters.get(*w).data(), parameters.get(*b).data()),
        };
        assert_eq!(w.len(), b.len(), "time encoding: frequencies and phases");
        (w, b)
    }
}

impl Tape<'_> {
    /// `cos(w * deltas[i] + b)` as row `i`. The product and the sum are rounded to f32, as frameworks do; the
    /// cosine of that is exact to 1e-6 for arguments up to 1e9.
    ///
    /// # Panics
    /// If the encoder has not as many phases as frequencies.
    pub fn time_encoding(&mut self, deltas: &[f32], encoder: &TimeEncoder) -> Var {
        let parameters = self.parameters();
        let mut y = self.room(deltas.len(), encoder.dim(parameters));
        match self.device() {
            Device::Cpu => {
                let (w, b) = encoder.weights(parameters);
                cpu::encode(y.data_mut(), deltas, w, b);
            }
            Device::Cuda(work) => {
                let (given, waves) = (work.upload(deltas), Waves::of(work, encoder, parameters));
                work.run(|context| time_encode(context, given.get()?, waves.get()?, y.on_gpu_mut()?));
            }
        }
        match *encoder {
            TimeEncoder::Trained { w, b } if self.training() => {
                let deltas = deltas.to_vec().into();
                self.push_with(y, true, move |_, d, walk| {
                    backward(walk, (w, b), &deltas, (&d, 0));
                    walk.give(d);
                })
            }
            _ => self.push(y, false, None),
        }
    }
}

/// Adds to the gradients of learned frequencies and phases, given that of an encoding: the columns of `d` from `first`
/// on.
pub(super) fn backward(
    walk: &mut Walk<'_>,
    (w, b): (ParamId, ParamId),
    deltas: &List<f32>,
    (d, first): (&Tensor, usize),
) {
    match walk.device {
        Device::Cpu => {
            let (weights, phases) = (walk.parameter(w).data(), walk.parameter(b).data());
            let from = first.min(d.data_len());
            let (dw, db) = cpu::backward(deltas.values(), weights, phases, &d.data()[from..], d.cols());
            accumulate_each(walk, &[w, b], &[dw, db].concat());
        }
        Device::Cuda(work) => backward_on_gpu(walk, (w, b), &deltas.sent(work), (d, first)),
    }
}

/// The same on a GPU: the gradient of an encoding is the columns of `d` from `first` on.
pub(super) fn backward_on_gpu(
    walk: &mut Walk<'_>,
    (w, b): (ParamId, ParamId),
    deltas: &Sent<f32>,
    (d, first): (&Tensor, usize),
) {
    let Device::Cuda(work) = walk.device else { return };
    let dim = walk.parameter(w).data_len();
    let waves = Waves::of(work, &TimeEncoder::Trained { w, b }, walk.parameters());
    let (rows, stride) = d.shape();
    let sums = Sums::of(work, [pieces_of(rows), 2 * dim], |context, partials| {
        time_backward(context, (deltas.get()?, rows), waves.get()?, (d.on_gpu()?, first, stride), partials)
    });
    sums.finish(walk, &[w, b]);
}
