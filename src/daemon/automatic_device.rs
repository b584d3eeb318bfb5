//! `device.use = "auto"`: the first GPU trains if its kernels are verified on it ([`verified_kernels`]), it computes
//! the model, and it takes steps of that model in less time than the CPU, which a trial of some seconds shows.
//! Everything else is the CPU, for a reason that names what is missing. A GPU that nobody has verified is not opened.

use std::path::PathBuf;
use std::sync::Arc;

use super::learning::use_device_memory;
use super::verified_kernels;
use crate::config::{ClusterRole, Config};
use crate::device::cuda::{Cuda, CudaOptions, CudaWork};
use crate::device::{CudaFound, Device};
use crate::learner::step_threads;
use crate::train::Trainer;
use crate::train::trial::step_seconds;

/// The GPU, and why it is taken; the error is why it is not.
pub(super) fn choose(
    config: &Config,
    kernel_dir: Option<PathBuf>,
    found: &CudaFound,
) -> Result<(Arc<Cuda>, String), String> {
    let Some(gpu) = found.devices.first() else { return Err("there is none".to_owned()) };
    if config.learner.ranks > 1 || config.cluster.role == ClusterRole::Replica {
        return Err("ranks and replicas do not train on a GPU".to_owned());
    }
    verified_kernels::check(&gpu.architecture, &config.device.verified_by)?;
    let options = CudaOptions {
        memory_bytes_max: config.device.memory_bytes_max,
        kernel_dir,
        ..CudaOptions::default()
    };
    let gpu = Cuda::open(0, &options).map_err(|error| error.to_string())?;
    let device = Device::Cuda(CudaWork::new(gpu.clone()));
    config.trainer_options().model.check_device(&device).map_err(|error| error.to_string())?;
    let there = trial(config, &device).map_err(|error| format!("a trial failed: {error}"))?;
    let here = trial(config, &Device::Cpu).map_err(|error| format!("a trial on the CPU failed: {error}"))?;
    pays(there, here).map(|why| (gpu, why))
}

/// Whether a device that takes a step in `there` seconds is worth it beside a CPU that takes `here`, in words.
fn pays(there: f64, here: f64) -> Result<String, String> {
    let both = format!("a step takes {:.2} ms there and {:.2} ms on the CPU", there * 1e3, here * 1e3);
    if there < here { Ok(both) } else { Err(both) }
}

/// Seconds of a step on a device, with the learner's threads.
fn trial(config: &Config, device: &Device) -> anyhow::Result<f64> {
    let mut trainer = Trainer::new(config.trainer_options(), device)?;
    use_device_memory(config, &mut trainer);
    let threads = step_threads(config.learner.threads, 0)?;
    let seconds = threads.install(|| step_seconds(&mut trainer, config.learner.batch_events));
    Ok(seconds?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::CudaDevice;

    #[test]
    fn the_faster_device_is_worth_it() {
        let both = "a step takes 1.00 ms there and 9.00 ms on the CPU";
        assert_eq!(pays(0.001, 0.009).as_deref(), Ok(both));
        assert!(
            pays(0.009, 0.001).is_err() && pays(f64::INFINITY, 0.1).is_err() && pays(f64::NAN, 0.1).is_err()
        );
    }

    #[test]
    fn a_gpu_that_nobody_has_verified_is_not_opened() {
        let config = Config::default_settings().unwrap();
        let why = |found: &CudaFound| choose(&config, None, found).unwrap_err();
        assert_eq!(why(&CudaFound::default()), "there is none");
        let gpu = CudaDevice {
            name: "NVIDIA X".into(),
            memory_bytes: 1 << 34,
            architecture: "sm_07".into(),
            bus: "0000:65:00.0".into(),
        };
        let found = CudaFound { driver: true, devices: vec![gpu], ..CudaFound::default() };
        assert!(why(&found).ends_with("files of kernels are not verified on sm_07"), "{}", why(&found));
    }

    #[test]
    fn a_trial_uses_the_models_settings() {
        let mut config = Config::default_settings().unwrap();
        config.learner.batch_events = 20;
        let seconds = trial(&config, &Device::Cpu).unwrap();
        assert!(seconds.is_finite() && seconds > 0.0, "{seconds}");
    }
}
