//! Where the daemon computes: what the settings wish for, what there is, and what came of it. A card that was asked for
//! and cannot be used is told in health, log and a metric, and never ends the daemon.

use std::path::PathBuf;
use std::sync::Arc;

use super::trainer_options;
use crate::api::{Health, State};
use crate::config::Config;
use crate::device::cuda::{Cuda, CudaOptions, CudaWork};
use crate::device::{CudaFound, Device, Wish, probe};
use crate::metrics::{Metrics, set_count};

/// Tells health and metrics that the card that trained cannot go on.
pub(super) fn tell_loss(health: &Health, metrics: &Metrics, why: &str) {
    metrics.device.degraded.set(1);
    let told = format!("the card failed and training goes on on the CPU: {why}; restart to use it again");
    health.set("device", State::Degraded, told);
}

/// The device that was chosen.
pub struct Placement {
    /// Where models compute.
    pub device: Device,
    /// The choice and its reason in one line.
    pub reason: String,
    /// What there is of CUDA; nobody looked if the settings say `cpu`.
    pub found: Option<CudaFound>,
    /// Why the card that was asked for cannot be used, if so.
    pub shortfall: Option<String>,
    card: Option<Arc<Cuda>>,
}

impl Placement {
    /// Looks for devices and opens the card that the settings name, if they do. Takes up to some seconds with a card.
    /// What is compiled for it is kept in `kernel_dir`.
    #[must_use]
    pub fn of(config: &Config, kernel_dir: Option<PathBuf>) -> Self {
        let cpu = |reason| Self { device: Device::Cpu, reason, found: None, shortfall: None, card: None };
        let wish = config.device.wish;
        if wish == Wish::Cpu {
            return cpu("cpu: device.use = \"cpu\"".to_owned());
        }
        let seen = probe();
        let Wish::Cuda(number) = wish else { return Self { found: Some(seen.cuda), ..cpu(seen.reason) } };
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
            Ok(card) => {
                let device = Device::Cuda(CudaWork::new(card.clone()));
                match trainer_options(config).model.check_device(&device) {
                    Ok(()) => {
                        let reason = format!("{}: device.use = \"{wish}\"", card.describe());
                        Self { device, card: Some(card), ..cpu(reason) }
                    }
                    Err(error) => Self { card: Some(card), ..short(error.to_string()) },
                }
            }
            Err(error) => short(error.to_string()),
        };
        Self { found: Some(seen.cuda), ..placement }
    }

    /// How the card was opened that the settings name, if one is.
    #[must_use]
    pub fn details(&self) -> Option<String> {
        self.card.as_ref().map(|card| card.details())
    }

    /// Tells the log and, where a card was asked for, health and metrics.
    pub(super) fn tell(&self, health: &Health, metrics: &Metrics) {
        tracing::info!(device = %self.reason, "device chosen");
        for complaint in self.card.iter().flat_map(|card| card.complaints()) {
            tracing::warn!("{complaint}");
        }
        metrics.device.degraded.set(i64::from(self.shortfall.is_some()));
        if let Some(shortfall) = &self.shortfall {
            tracing::warn!("{shortfall}; computing on the CPU");
            health.set("device", State::Degraded, shortfall.clone());
        }
        if let Some(card) = &self.card {
            let detail = format!("{}, {}", card.describe(), card.details());
            tracing::info!("{detail}");
            if self.shortfall.is_none() {
                health.set("device", State::Ok, detail);
            }
            let card = card.clone();
            metrics.on_scrape(Box::new(move |metrics| {
                let memory = card.memory();
                for (kind, bytes) in [("used", memory.used), ("peak", memory.peak), ("budget", memory.budget)]
                {
                    set_count(&metrics.device.memory.with_label_values(&[kind]), bytes as u64);
                }
            }));
        }
    }
}
