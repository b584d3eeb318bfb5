//! [`Placed`]: published weights where a trainer computes. Publishing and judging read versions that are not trained
//! any more; on a GPU each of them is copied there once.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Trainer;
use crate::device::Device;
use crate::model::{Model, Weights};

/// Versions that are read at the same time: the published and the kept one.
const VERSIONS: usize = 2;

/// Copies of versions on a GPU, the one that was asked for last at the end.
#[derive(Default)]
pub(super) struct Placed(Mutex<Vec<(Weights, Arc<Model>)>>);

impl Placed {
    fn of(&self, weights: &Weights, device: &Device) -> Arc<Model> {
        let mut copies = self.0.lock();
        let same = |(of, model): &(Weights, Arc<Model>)| of.is(weights) && model.device() == device;
        let found = copies.iter().position(same).map(|at| copies.remove(at));
        let copy = found.unwrap_or_else(|| (weights.clone(), Arc::new(weights.model().to(device))));
        let model = copy.1.clone();
        copies.push(copy);
        let older = copies.len().saturating_sub(VERSIONS);
        copies.drain(..older);
        model
    }
}

impl Trainer {
    /// The model of published `weights`, where this trainer computes.
    #[must_use]
    pub fn place(&self, weights: &Weights) -> Arc<Model> {
        match self.device() {
            Device::Cpu => weights.shared_model(),
            device @ Device::Cuda(_) => self.placed.of(weights, device),
        }
    }
}
