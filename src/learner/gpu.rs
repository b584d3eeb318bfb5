//! What becomes of the loop when the GPU that trains fails. Memory and messages are the CPU's all along, and
//! the served weights too, so nothing that was acknowledged or shown is lost: training goes on from the weights that
//! the GPU handed out last, which are the candidate's at its last promotion, checkpoint or start, with an optimizer
//! without history. What it learned since is lost.

use super::{LearnBatch, Learner, LearnerError};
use crate::device::Device;
use crate::train::TrainError;

impl Learner {
    /// Learns `batch`; where a GPU fails before its step, again on the CPU.
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

    /// Does `work`, and does it again on the CPU if a GPU fails at it.
    ///
    /// # Errors
    /// What `work` fails with for another reason.
    pub(super) fn on_gpu(
        &mut self,
        mut work: impl FnMut(&mut Self) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let Err(error) = work(self) else { return Ok(()) };
        self.leave_gpu(error)?;
        work(self)
    }

    /// Reads the weights of a GPU: what training would go on from without it. One that was lost while nothing was
    /// learned is left.
    pub(super) fn fetch_gpu_weights(&mut self) {
        if *self.trainer.device() != Device::Cpu {
            let _ = self.on_gpu(|learner| learner.trainer.weights().map(drop));
        }
    }

    /// Goes on on the CPU after a GPU's `error`.
    ///
    /// # Errors
    /// The error itself, if it is not a GPU's or the trainer cannot go on.
    pub(super) fn leave_gpu(&mut self, error: TrainError) -> Result<(), TrainError> {
        if !matches!(error, TrainError::Gpu(_)) || *self.trainer.device() == Device::Cpu {
            return Err(error);
        }
        let Ok(version) = self.trainer.leave_gpu() else { return Err(error) };
        tracing::error!(%error, version, "training goes on on the CPU, from weights of this version");
        (self.record.device_lost)(&error.to_string());
        Ok(())
    }
}
