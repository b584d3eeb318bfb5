//! The linear layer: `y = x Wᵀ + b`.

use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::layers::Put;
use crate::device::matmul::{Into, matmul};
use crate::nn::cpu::linear as cpu;
use crate::nn::cuda::linear as cuda;
use crate::nn::cuda::sums::RowsRead;
use crate::nn::tape::Walk;
use crate::nn::{ParamId, Tape, Tensor, Var};

impl Tape<'_> {
    /// `x Wᵀ + b`: `[n, in]` to `[n, out]` with `weight` `[out, in]` and `bias` `[1, out]`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn linear(&mut self, x: Var, weight: ParamId, bias: Option<ParamId>) -> Var {
        let parameters = self.parameters();
        let w = parameters.get(weight);
        let b = bias.map(|b| parameters.get(b));
        let mut y = self.room(self.value(x).rows(), w.rows());
        forward(&mut y, self.value(x), w, b);
        let training = self.training();
        self.push_with(y, training, move |_, d, walk| {
            let (w, value) = (walk.parameter(weight), walk.value(x));
            walk.flow_with(x, |dx, overwrite| backward_input(dx, overwrite, &d, w));
            backward_parameters(walk, Arc::new(d), RowsRead::Lasting(value), weight, bias);
        })
    }
}

/// `y = x wᵀ + b`.
pub(super) fn forward(y: &mut Tensor, x: &Tensor, w: &Tensor, b: Option<&Tensor>) {
    assert_eq!(x.cols(), w.cols(), "linear: input {:?}, weight {:?}", x.shape(), w.shape());
    match x.device() {
        Device::Cpu => {
            let into = match b {
                Some(b) => {
                    assert_eq!(
                        b.data_len(),
                        w.rows(),
                        "linear: bias {:?}, weight {:?}",
                        b.shape(),
                        w.shape()
                    );
                    cpu::fill_rows(y.data_mut(), b.data());
                    Into::Add
                }
                None => Into::Replace,
            };
            matmul(y.view_mut(), into, 1.0, x.view(), w.view().t());
        }
        Device::Cuda(work) => {
            cuda::forward(work, y, Put::REPLACE, (x, 0), (w, cuda::columns(w, 0)), b);
        }
    }
}

/// Adds `dᵀ x` to the weight's gradient and the column sums of `d` to the bias's, and gives `d` back.
pub(super) fn backward_parameters<'a>(
    walk: &mut Walk<'a>,
    d: Arc<Tensor>,
    x: RowsRead<'a>,
    w: ParamId,
    b: Option<ParamId>,
) {
    match walk.device {
        Device::Cpu => {
            let (dw, overwrite) = walk.gradient(w);
            matmul(dw.view_mut(), Into::over(overwrite), 1.0, d.view().t(), x.get().view());
            if let Some(b) = b {
                let (db, overwrite) = walk.gradient(b);
                cpu::column_sums(db.data_mut(), d.data(), overwrite);
            }
            walk.give_shared(d);
        }
        Device::Cuda(work) => {
            let ids: Vec<ParamId> = [w].into_iter().chain(b).collect();
            cuda::backward_parameters(work, RowsRead::Made(d), x, b.is_some()).finish(walk, &ids);
        }
    }
}

/// `dx = d w`, or adds it.
pub(super) fn backward_input(dx: &mut Tensor, overwrite: bool, d: &Tensor, w: &Tensor) {
    match d.device() {
        Device::Cpu => matmul(dx.view_mut(), Into::over(overwrite), 1.0, d.view(), w.view()),
        Device::Cuda(work) => cuda::backward_input(work, (dx, 0), overwrite, d, (w, cuda::columns(w, 0))),
    }
}
