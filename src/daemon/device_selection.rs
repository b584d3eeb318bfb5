//! Device selection: the configured device, the available ones, and the outcome. A requested GPU that cannot be used is
//! reported in health, log and a metric, and never ends the daemon.

use std::path::PathBuf;
use std::sync::Arc;

use super::automatic_device;
use super::verified_kernels::Refusal;
use crate::api::{Health, State};
use crate::config::Config;
use crate::device::cuda::{Cuda, CudaOptions, CudaWork};
use crate::device::{CudaFound, Device, DeviceSpec, Probe, probe};
use crate::metrics::{Metrics, set_count};

/// Reports to health and metrics that the GPU failed during training.
pub(super) fn report_loss(health: &Health, metrics: &Metrics, why: &str) {
    metrics.device.degraded.set(1);
    let message = format!("the GPU failed and training continues on the CPU: {why}; restart to use it again");
    health.set("device", State::Degraded, message);
}

/// The device that was chosen.
pub struct DeviceSelection {
    /// Where models compute.
    pub device: Device,
    /// The choice and its reason in one line.
    pub reason: String,
    /// The CUDA devices; not probed if the settings select `cpu`.
    pub found: Option<CudaFound>,
    /// Why the requested GPU cannot be used, if so.
    pub shortfall: Option<String>,
    gpu: Option<Arc<Cuda>>,
}

impl DeviceSelection {
    /// Probes devices and opens the configured GPU, if any. Takes up to some seconds with a GPU. Compiled kernels are
    /// cached in `kernel_dir`.
    #[must_use]
    pub fn of(config: &Config, kernel_dir: Option<PathBuf>) -> Self {
        let cpu = |reason| Self { device: Device::Cpu, reason, found: None, shortfall: None, gpu: None };
        let spec = config.device.spec;
        if spec == DeviceSpec::Cpu {
            return cpu("cpu: device.use = \"cpu\"".to_owned());
        }
        let seen = probe();
        let DeviceSpec::Cuda(number) = spec else { return Self::automatic(config, seen, Some(kernel_dir)) };
        let options = CudaOptions {
            memory_bytes_max: config.device.memory_bytes_max,
            kernel_dir,
            ..CudaOptions::default()
        };
        let short = |why: String| {
            let shortfall = format!("device.use = \"{spec}\" but it cannot be used: {why}");
            Self { shortfall: Some(shortfall.clone()), ..cpu(format!("cpu: {shortfall}")) }
        };
        let placement = match Cuda::open(number, &options) {
            Ok(gpu) => {
                let device = Device::Cuda(CudaWork::new(gpu.clone()));
                match config.trainer_options().model.check_device(&device) {
                    Ok(()) => {
                        let reason = format!("{}: device.use = \"{spec}\"", gpu.describe());
                        Self { device, gpu: Some(gpu), ..cpu(reason) }
                    }
                    Err(error) => Self { gpu: Some(gpu), ..short(error.to_string()) },
                }
            }
            Err(error) => short(error.to_string()),
        };
        Self { found: Some(seen.cuda), ..placement }
    }

    /// As [`Self::of`], without a trial: a GPU that `auto` would try is not opened.
    #[must_use]
    pub fn without_trial(config: &Config) -> Self {
        match config.device.spec {
            DeviceSpec::Auto => Self::automatic(config, probe(), None),
            _ => Self::of(config, None),
        }
    }

    /// The first GPU if it is there, verified and faster than the CPU, else the CPU; `trial` has the folder of kernels,
    /// where there is to be one.
    fn automatic(config: &Config, seen: Probe, trial: Option<Option<PathBuf>>) -> Self {
        let Probe { reason, cuda: found, .. } = seen;
        let first = found.devices.first().filter(|_| found.problem.is_none());
        let eligible = first.map(|gpu| automatic_device::is_eligible(config, gpu));
        let (mut device, mut shortfall, mut gpu) = (Device::Cpu, None, None);
        let reason = match (eligible, trial) {
            (None, _) => reason,
            (Some(Err(Refusal::Missing(why))), _) => format!("{reason} and does not use it: {why}"),
            (Some(Err(Refusal::Fault(why))), _) => {
                let reason = format!("{reason} and does not use it: {why}");
                shortfall = Some(why);
                reason
            }
            (Some(Ok(())), None) => format!("{reason} and tries it at a start"),
            (Some(Ok(())), Some(kernel_dir)) => match automatic_device::try_out(config, kernel_dir) {
                Err(why) => format!("{reason} and does not use it: {why}"),
                Ok((opened, why)) => {
                    let reason = format!("{}: device.use = \"auto\": {why}", opened.describe());
                    device = Device::Cuda(CudaWork::new(opened.clone()));
                    gpu = Some(opened);
                    reason
                }
            },
        };
        Self { device, reason, found: Some(found), shortfall, gpu }
    }

    /// The options of the configured GPU, if any.
    #[must_use]
    pub fn details(&self) -> Option<String> {
        self.gpu.as_ref().map(|gpu| gpu.details())
    }

    /// Reports to the log and, where a GPU was requested, to health and metrics.
    pub(super) fn report(&self, health: &Health, metrics: &Metrics) {
        tracing::info!(device = %self.reason, "device chosen");
        for complaint in self.gpu.iter().flat_map(|gpu| gpu.complaints()) {
            tracing::warn!("{complaint}");
        }
        metrics.device.degraded.set(i64::from(self.shortfall.is_some()));
        if let Some(shortfall) = &self.shortfall {
            tracing::warn!("{shortfall}; computing on the CPU");
            health.set("device", State::Degraded, shortfall.clone());
        }
        if let Some(gpu) = &self.gpu {
            let detail = format!("{}, {}", gpu.describe(), gpu.details());
            tracing::info!("{detail}");
            if self.shortfall.is_none() {
                health.set("device", State::Ok, detail);
            }
            let gpu = gpu.clone();
            metrics.on_scrape(Box::new(move |metrics| {
                let memory = gpu.memory();
                for (kind, bytes) in [("used", memory.used), ("peak", memory.peak), ("budget", memory.budget)]
                {
                    set_count(&metrics.device.memory.with_label_values(&[kind]), bytes as u64);
                }
                let bus = gpu.bus();
                let kinds =
                    [("to_gpu", bus.to_gpu), ("to_host", bus.to_host), ("read_in_place", bus.read_in_place)];
                for (kind, bytes) in kinds {
                    let counter = metrics.device.bus.with_label_values(&[kind]);
                    counter.inc_by(bytes.saturating_sub(counter.get()));
                }
            }));
        }
    }
}
