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

/// How the settings have a GPU opened; compiled kernels are kept in `kernel_dir`.
pub(super) fn cuda_options(config: &Config, kernel_dir: Option<PathBuf>) -> CudaOptions {
    CudaOptions { memory_bytes_max: config.device.memory_bytes_max, kernel_dir, ..CudaOptions::default() }
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
    /// Probes devices and opens the configured GPU, if any; `auto` tries one that is eligible. Takes up to some seconds
    /// with a GPU. Compiled kernels are kept in the data directory.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self::select(config, Some(config.data.dir.join(&config.device.kernel_dir)))
    }

    /// The same, but nothing is kept, and a GPU that `auto` would try is not opened.
    #[must_use]
    pub fn without_trial(config: &Config) -> Self {
        Self::select(config, None)
    }

    fn select(config: &Config, kernel_dir: Option<PathBuf>) -> Self {
        let spec = config.device.spec;
        if spec == DeviceSpec::Cpu {
            return Self::cpu("cpu: device.use = \"cpu\"".to_owned());
        }
        let seen = probe();
        let selected = match spec {
            DeviceSpec::Cuda(number) => Self::named(config, number, kernel_dir),
            _ => Self::automatic(config, &seen, kernel_dir),
        };
        Self { found: Some(seen.cuda), ..selected }
    }

    fn cpu(reason: String) -> Self {
        Self { device: Device::Cpu, reason, found: None, shortfall: None, gpu: None }
    }

    /// A GPU, with what `device.use` is, and why that is this GPU.
    fn on(gpu: Arc<Cuda>, what: &str) -> Self {
        let reason = format!("{}: device.use = {what}", gpu.describe());
        Self { device: Device::Cuda(CudaWork::new(gpu.clone())), gpu: Some(gpu), ..Self::cpu(reason) }
    }

    /// The GPU of this number, or the CPU and what is missing.
    fn named(config: &Config, number: usize, kernel_dir: Option<PathBuf>) -> Self {
        let spec = config.device.spec;
        let short = |why: String| {
            let shortfall = format!("device.use = \"{spec}\" but it cannot be used: {why}");
            Self { shortfall: Some(shortfall.clone()), ..Self::cpu(format!("cpu: {shortfall}")) }
        };
        let gpu = match Cuda::open(number, &cuda_options(config, kernel_dir)) {
            Ok(gpu) => gpu,
            Err(error) => return short(error.to_string()),
        };
        let on = Self::on(gpu, &format!("\"{spec}\""));
        match config.trainer_options().model.check_device(&on.device) {
            Ok(()) => on,
            Err(error) => Self { gpu: on.gpu, ..short(error.to_string()) },
        }
    }

    /// The first GPU if it is there, verified and faster than the CPU, else the CPU. Without a `kernel_dir` it is not
    /// tried.
    fn automatic(config: &Config, seen: &Probe, kernel_dir: Option<PathBuf>) -> Self {
        let Probe { reason, cuda: found, .. } = seen;
        let unused = |why: &str| Self::cpu(format!("{reason} and does not use it: {why}"));
        let Some(first) = found.devices.first().filter(|_| found.problem.is_none()) else {
            return Self::cpu(reason.clone());
        };
        match (automatic_device::is_eligible(config, first), kernel_dir) {
            (Err(Refusal::Missing(why)), _) => unused(&why),
            (Err(Refusal::Fault(why)), _) => Self { shortfall: Some(why.clone()), ..unused(&why) },
            (Ok(()), None) => Self::cpu(format!("{reason} and tries it at a start")),
            (Ok(()), Some(kernel_dir)) => match automatic_device::try_out(config, kernel_dir) {
                Ok((gpu, why)) => Self::on(gpu, &format!("\"auto\": {why}")),
                Err(why) => unused(&why),
            },
        }
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
