//! `device.use = "auto"`: the first GPU trains if its kernels are verified on it ([`verified_kernels`]), it computes
//! the model, and it takes steps of that model in clearly less time than the CPU, which a trial of some seconds shows
//! at each start. Everything else is the CPU, for a reason that names what is missing. A GPU that nobody has verified
//! is not opened.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use super::device_selection::cuda_options;
use super::learning::use_device_memory;
use super::verified_kernels::{self, Refusal};
use crate::config::{ClusterRole, Config};
use crate::device::cuda::{Cuda, CudaWork, Launching};
use crate::device::{CudaDevice, Device};
use crate::learner::step_threads;
use crate::train::Trainer;
use crate::train::trial::step_seconds;

/// What the GPU has to be faster by: trials differ from run to run, and a device that changes from start to start
/// changes what is learned by rounding.
const MARGIN: f64 = 1.25;

/// Whether a GPU like this is worth a trial.
pub(super) fn is_eligible(config: &Config, gpu: &CudaDevice) -> Result<(), Refusal> {
    let missing = |why: &str| Err(Refusal::Missing(why.to_owned()));
    if config.cluster.role == ClusterRole::Replica || !config.learner.train {
        return missing("nothing is trained here");
    }
    if config.learner.ranks > 1 {
        return missing("processes that train together do so on CPUs");
    }
    let model = config.trainer_options().model;
    model.check_gpu().map_err(|why| Refusal::Missing(format!("no GPU computes {}: {why}", model.name())))?;
    verified_kernels::check(&gpu.architecture, &config.device.verified_by)
}

/// Opens the first GPU and has it and the CPU take some steps. Returns the GPU, and why it is taken; the error is why
/// not.
pub(super) fn try_out(config: &Config, kernel_dir: PathBuf) -> Result<(Arc<Cuda>, String), String> {
    tracing::info!("a trial shows whether the GPU takes steps faster than the CPU");
    let options = cuda_options(config, Some(kernel_dir));
    let gpu = Cuda::open(0, &options).map_err(|error| error.to_string())?;
    // Two ways to launch steps: a daemon takes the fastest of all, which it finds out in longer than a trial takes.
    let ways = [Launching::Graph, Launching::Direct].map(|launching| {
        let work = CudaWork::new(gpu.clone());
        work.launch_steps(launching);
        // Whatever a GPU does, it does not end the process.
        let taken = catch_unwind(AssertUnwindSafe(|| trial(config, &Device::Cuda(work))));
        taken.unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")))
    });
    let ways: Vec<f64> = ways
        .into_iter()
        .collect::<anyhow::Result<_>>()
        .map_err(|error| format!("a trial failed: {error}"))?;
    let there = ways.into_iter().fold(f64::INFINITY, f64::min);
    let here = trial(config, &Device::Cpu).map_err(|error| format!("a trial on the CPU failed: {error}"))?;
    pays(there, here).map(|why| (gpu, why))
}

/// Whether a device that takes a step in `there` seconds is worth it beside a CPU that takes `here`, in words.
fn pays(there: f64, here: f64) -> Result<String, String> {
    let both = format!("a step takes {:.2} ms there and {:.2} ms on the CPU", there * 1e3, here * 1e3);
    if there * MARGIN < here {
        Ok(both)
    } else {
        Err(format!("{both}, and it has to be {MARGIN} times as fast"))
    }
}

/// Seconds of a step on a device, with the learner's threads.
fn trial(config: &Config, device: &Device) -> anyhow::Result<f64> {
    let mut trainer = Trainer::new(config.trainer_options(), device)?;
    use_device_memory(config, &mut trainer);
    let threads = step_threads(config.learner.threads, 0)?;
    Ok(threads.install(|| step_seconds(&mut trainer, config.learner.batch_events))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelKind;

    #[test]
    fn a_gpu_is_worth_it_if_it_is_clearly_faster() {
        let both = "a step takes 1.00 ms there and 9.00 ms on the CPU";
        assert_eq!(pays(0.001, 0.009).as_deref(), Ok(both));
        for (there, here) in [(0.009, 0.001), (0.009, 0.010), (f64::INFINITY, 0.1), (f64::NAN, 0.1)] {
            assert!(pays(there, here).is_err(), "{there} {here}");
        }
    }

    #[test]
    fn only_a_verified_gpu_is_tried_and_only_for_what_it_would_train() {
        let gpu = CudaDevice {
            name: "NVIDIA X".into(),
            memory_bytes: 1 << 34,
            architecture: "sm_07".into(),
            bus: "0000:65:00.0".into(),
        };
        let why = |change: fn(&mut Config)| {
            let mut config = Config::default_settings().unwrap();
            change(&mut config);
            match is_eligible(&config, &gpu) {
                Err(Refusal::Missing(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        assert!(why(|_| ()).ends_with("files of kernels are not verified on sm_07"));
        assert_eq!(why(|config| config.learner.train = false), "nothing is trained here");
        assert_eq!(why(|config| config.cluster.role = ClusterRole::Replica), "nothing is trained here");
        assert!(why(|config| config.learner.ranks = 2).starts_with("processes that train together"));
        let walks = why(|config| config.model.kind = ModelKind::Walk);
        assert_eq!(walks, "no GPU computes walk: walks are counted on the CPU");
    }

    #[test]
    fn a_trial_is_of_the_configured_model() {
        let mut config = Config::default_settings().unwrap();
        config.learner.batch_events = 5;
        let seconds = trial(&config, &Device::Cpu).unwrap();
        assert!(seconds > 0.0 && seconds.is_finite(), "{seconds}");
        config.model.heads = 7;
        assert!(trial(&config, &Device::Cpu).is_err(), "no model has these heads");
    }
}
