//! Failover to the CPU when the GPU that trains fails. Memory, messages and the served weights are on the CPU at all
//! times, so nothing that was acknowledged or published is lost: training continues from the weights last read from the
//! GPU (at the last promotion, checkpoint or start) with a fresh optimizer. What was learned since is lost.

use super::{LearnBatch, Learner, LearnerError};
use crate::device::Device;
use crate::graph::GraphStore;
use crate::sampler::DeviceSampler;
use crate::train::TrainError;

/// Brings the GPU's copy of the graph, if there is one, to the end of `batch`, which is the next one or behind it.
pub(super) fn follow(sampler: Option<&DeviceSampler>, graph: &GraphStore, batch: &LearnBatch) {
    let Some(sampler) = sampler else { return };
    if let Some(at) = sampler.applied().filter(|at| *at < batch.end) {
        sampler.follow(graph, &batch.records_from(at));
    }
}

impl Learner {
    /// Learns `batch`; if a GPU fails before its step, learns it on the CPU.
    ///
    /// # Errors
    /// When the log or what the batch needs cannot be read, or the trainer cannot go on.
    pub(super) fn learn_anywhere(&mut self, batch: &LearnBatch) -> Result<(), LearnerError> {
        let threads = self.threads.clone();
        match threads.install(|| self.learn(batch)) {
            Err(LearnerError::Train(error @ TrainError::Gpu(_))) => {
                self.leave_gpu(error)?;
                threads.install(|| self.learn(batch))
            }
            done => done,
        }
    }

    /// Sees to it that the GPU has copies of the graph and of edge rows, if it is to, up to the end of `batch`. No step
    /// is computed now.
    pub(super) fn bring_copies(&self, batch: &LearnBatch) -> Result<(), TrainError> {
        let stores = &self.shared.engine.stores;
        self.sampler.iter().for_each(|sampler| sampler.open(&stores.graph));
        follow(self.sampler.as_ref(), &stores.graph, batch);
        self.trainer.follow_rows(&stores.edge_features, batch.end)
    }

    /// Announces the batch that was sampled beside the step that was just taken, if that did neither announce it nor
    /// record its step, so that a GPU brings in its edge rows while the CPU measures and publishes.
    pub(super) fn foresee(&mut self) {
        let next = &mut self.ahead.preparation;
        if !(self.ahead.filled && next.sampled) || next.foreseen || self.trainer.has_recorded(&next.prepared)
        {
            return;
        }
        let preparer = self.trainer.preparer().publishing();
        next.foresee(&mut self.trainer, &preparer, (&[], &self.shared.engine.stores.edge_features));
        self.trainer.restore_rows();
    }

    /// Does `work`, and retries it on the CPU if a GPU fails.
    ///
    /// # Errors
    /// Any other error of `work`.
    pub(super) fn on_gpu(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let Err(error) = work(self) else { return Ok(()) };
        self.leave_gpu(error)?;
        work(self)
    }

    /// Reads the weights from the GPU, for training to continue from after a failure. If the GPU was lost while the
    /// loop was idle, training moves to the CPU.
    pub(super) fn fetch_gpu_weights(&mut self) {
        if *self.trainer.device() != Device::Cpu {
            let _ = self.on_gpu(|learner| learner.trainer.weights().map(drop));
        }
    }

    /// Continues on the CPU after a GPU's `error`.
    ///
    /// # Errors
    /// The error itself, if it is not a GPU's or the trainer cannot go on.
    pub(super) fn leave_gpu(&mut self, error: TrainError) -> Result<(), TrainError> {
        if !matches!(error, TrainError::Gpu(_)) || *self.trainer.device() == Device::Cpu {
            return Err(error);
        }
        let Ok(version) = self.trainer.leave_gpu() else { return Err(error) };
        self.sampler.iter().for_each(DeviceSampler::close);
        self.count_samples();
        self.sampler = None;
        tracing::error!(%error, version, "training goes on on the CPU, from weights of this version");
        (self.record.device_lost)(&error.to_string());
        Ok(())
    }
}
