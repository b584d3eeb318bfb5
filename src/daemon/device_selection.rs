//! Where the daemon computes: what the settings wish for, what there is, and what came of it. A GPU that was asked for
//! and cannot be used is told in health, log and a metric, and never ends the daemon.

use std::path::PathBuf;
use std::sync::Arc;

use super::trainer_options;
use crate::api::{Health, State};
use crate::config::Config;
use crate::device::cuda::{Cuda, CudaOptions, CudaWork};
use crate::device::{CudaFound, Device, DeviceSpec, probe};
use crate::metrics::{Metrics, set_count};

/// Tells health and metrics that the GPU that trained cannot go on.
pub(super) fn report_loss(health: &Health, metrics: &Metrics, why: &str) {
    metrics.device.degraded.set(1);
    let message = format!("the GPU failed and training goes on on the CPU: {why}; restart to use it again");
    health.set("device", State::Degraded, message);
}

/// The device that was chosen.
pub struct DeviceSelection {
    /// Where models compute.
    pub device: Device,
    /// The choice and its reason in one line.
    pub reason: String,
    /// What there is of CUDA; nobody looked if the settings say `cpu`.
    pub found: Option<CudaFound>,
    /// Why the GPU that was asked for cannot be used, if so.
    pub shortfall: Option<String>,
    gpu: Option<Arc<Cuda>>,
}

impl DeviceSelection {
    /// Looks for devices and opens the GPU that the settings name, if they do. Takes up to some seconds with a GPU.
    /// What is compiled for it is kept in `kernel_dir`.
    #[must_use]
    pub fn of(config: &Config, kernel_dir: Option<PathBuf>) -> Self {
        let cpu = |reason| Self { device: Device::Cpu, reason, found: None, shortfall: None, gpu: None };
        let wish = config.device.wish;
        if wish == DeviceSpec::Cpu {
            return cpu("cpu: device.use = \"cpu\"".to_owned());
        }
        let seen = probe();
        let DeviceSpec::Cuda(number) = wish else {
            return Self { found: Some(seen.cuda), ..cpu(seen.reason) };
        };
        let options = CudaOptions {
            memory_bytes_max: config.device.memory_bytes_max,
            kernel_dir,
            ..CudaOptions::default()
        };
        let short = |why: String| {
            let shortfall = format!("device.use = \"{wish}\" and it cannot be used: {why}");
            Self { shortfall: Some(shortfall.clone()), ..cpu(format!("cpu: {shortfall}")) }
        };
        let placement = match Cuda::open(number, &options) {
            Ok(gpu) => {
                let device = Device::Cuda(CudaWork::new(gpu.clone()));
                match trainer_options(config).model.check_device(&device) {
                    Ok(()) => {
                        let reason = format!("{}: device.use = \"{wish}\"", gpu.describe());
                        Self { device, gpu: Some(gpu), ..cpu(reason) }
                    }
                    Err(error) => Self { gpu: Some(gpu), ..short(error.to_string()) },
                }
            }
            Err(error) => short(error.to_string()),
        };
        Self { found: Some(seen.cuda), ..placement }
    }

    /// How the GPU was opened that the settings name, if one is.
    #[must_use]
    pub fn details(&self) -> Option<String> {
        self.gpu.as_ref().map(|gpu| gpu.details())
    }

    /// Tells the log and, where a GPU was asked for, health and metrics.
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
            }));
        }
    }
}
