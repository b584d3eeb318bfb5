//! A trainer whose model computes on a GPU: what the CPU knows of its weights, and how it goes on without the
//! GPU.

use super::placed::Placed;
use super::trainer::{TrainError, Trainer};
use crate::device::Device;
use crate::model::{Model, ModelError, Weights};
use crate::nn::Gradients;
use crate::sampler::{DeviceSampler, DeviceSamplerOptions};

impl Trainer {
    /// Has batches sampled on the GPU that computes, from copies of graphs of this size; with no room, as at first, the
    /// CPU samples them. What is computed is the same, bit for bit.
    pub fn sample_on_device(&mut self, options: DeviceSamplerOptions) {
        self.graphs = options;
    }

    /// What samples a graph for this trainer; `None` where the CPU does.
    #[must_use]
    pub fn device_sampler(&self) -> Option<DeviceSampler> {
        let Device::Cuda(work) = &self.device else { return None };
        let has_room = self.graphs.gpu_bytes_max > 0;
        (has_room && self.model.needs().embeds()).then(|| DeviceSampler::new(work.cuda(), self.graphs))
    }

    /// The model of a new trainer on its device, and what the CPU goes back to if that is a GPU and fails.
    pub(super) fn placing(here: Model, device: &Device, steps: u64) -> (Model, Option<Weights>) {
        let known = (*device != Device::Cpu).then(|| Weights::of(here.clone(), steps));
        (here.moved_to(device), known)
    }

    /// The weights as they are now, on the CPU; their version is the number of steps taken. Waits for a GPU.
    ///
    /// # Errors
    /// The GPU's, if one computes.
    pub fn weights(&self) -> Result<Weights, TrainError> {
        self.expect_none_begun();
        let model = self.model.to(&Device::Cpu);
        self.device.check()?;
        let weights = Weights::of(model, self.steps);
        if self.device != Device::Cpu {
            *self.known.lock() = Some(weights.clone());
        }
        Ok(weights)
    }

    /// Goes on computing on the CPU: what is left when a GPU fails. Memory and messages are as they were; the
    /// weights are those that were last read from or written to the GPU, and the optimizer has no history. Returns
    /// which step they are of.
    ///
    /// # Errors
    /// None in practice: the weights are of another shape.
    pub fn leave_gpu(&mut self) -> Result<u64, ModelError> {
        if let Device::Cuda(work) = std::mem::replace(&mut self.device, Device::Cpu) {
            (self.placed, self.fresh_on_gpu, self.rows) = (Placed::default(), None, None);
            (self.ahead, self.begun) = (None, None);
            self.state.mirror.clear();
            self.cache_rows(0);
            work.release();
        }
        let known = self.known.get_mut().take();
        let known = known.map_or_else(
            || {
                Model::new(self.options.model, self.options.seed, &Device::Cpu)
                    .map(|model| Weights::of(model, 0))
            },
            Ok,
        )?;
        self.set_weights(&known)?;
        self.gradients = Gradients::new(&self.device, &self.model.parameters);
        Ok(known.version)
    }
}
