//! [`probe`]: which device this machine offers, which one is chosen, and why, in words for people.
//!
//! The CUDA libraries are looked for at run time. `cudarc` panics when a library is missing, so each one is
//! asked for with `is_culib_present` first, and the calls into the driver run behind `catch_unwind` because a
//! driver too old for an entry point is reported as a panic as well. A probe never fails and never panics.

#![allow(unsafe_code)]

use cudarc::driver::{result, sys};

use super::Device;

/// What the probe found and decided.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The device to compute on.
    pub chosen: Device,
    /// The choice and its reason in one line, e.g. `cpu: no NVIDIA driver library (libcuda.so.1) on this machine`.
    pub reason: String,
    /// What there is of CUDA.
    pub cuda: CudaFound,
}

/// What there is of CUDA on this machine.
#[derive(Clone, Debug, Default)]
pub struct CudaFound {
    /// Whether the driver library (libcuda) can be loaded.
    pub driver: bool,
    /// Whether the run-time compiler (libnvrtc) can be loaded.
    pub nvrtc: bool,
    /// Whether the matrix library (libcublas) can be loaded.
    pub cublas: bool,
    /// The newest CUDA version the driver supports, `1000 * major + 10 * minor`.
    pub driver_version: Option<i32>,
    /// The cards, in the driver's order.
    pub devices: Vec<CudaDevice>,
    /// Why the driver could not be used although its library is there.
    pub problem: Option<String>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Its marketing name.
    pub name: String,
    /// Its memory in bytes.
    pub memory_bytes: usize,
}

/// Looks for accelerators and chooses a device. Takes some milliseconds without a driver, up to a second with one.
#[must_use]
pub fn probe() -> Probe {
    // SAFETY: loading a library runs its initialisers; these are NVIDIA's own, from the system's library path.
    let mut cuda = unsafe {
        CudaFound {
            driver: sys::is_culib_present(),
            nvrtc: cudarc::nvrtc::sys::is_culib_present(),
            cublas: cudarc::cublas::sys::is_culib_present(),
            ..CudaFound::default()
        }
    };
    if cuda.driver {
        match std::panic::catch_unwind(ask_driver) {
            Ok(Ok((version, devices))) => {
                cuda.driver_version = Some(version);
                cuda.devices = devices;
            }
            Ok(Err(problem)) => cuda.problem = Some(problem),
            Err(_) => cuda.problem = Some("the driver library lacks an entry point that is needed".into()),
        }
    }
    Probe { chosen: Device::Cpu, reason: format!("cpu: {}", describe(&cuda)), cuda }
}

fn ask_driver() -> Result<(i32, Vec<CudaDevice>), String> {
    let said = |error: result::DriverError| error.to_string();
    result::init().map_err(said)?;
    let mut version = 0;
    // SAFETY: the driver library is present and initialised; the pointer is to a live integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(said)?;
    let count = result::device::get_count().map_err(said)?;
    let devices = (0..count).map(|ordinal| {
        let device = result::device::get(ordinal)?;
        let name = result::device::get_name(device)?;
        // SAFETY: `device` was just returned by the driver.
        let memory_bytes = unsafe { result::device::total_mem(device) }?;
        Ok(CudaDevice { name, memory_bytes })
    });
    Ok((version, devices.collect::<Result<_, _>>().map_err(said)?))
}

fn describe(cuda: &CudaFound) -> String {
    if !cuda.driver {
        return "no NVIDIA driver library (libcuda.so.1) on this machine".into();
    }
    if let Some(problem) = &cuda.problem {
        return format!("the NVIDIA driver library is here but cannot be used: {problem}");
    }
    let Some(first) = cuda.devices.first() else {
        return "the NVIDIA driver is here but shows no device".into();
    };
    let more = match cuda.devices.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let version = cuda.driver_version.unwrap_or(0);
    let (major, minor) = (version / 1000, version % 1000 / 10);
    format!("found {}{more} (driver {major}.{minor}), but this version computes on the CPU only", first.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_names_its_reason_and_does_not_panic() {
        let probe = probe();
        assert_eq!(probe.chosen, Device::Cpu);
        assert!(probe.reason.starts_with("cpu: "), "{}", probe.reason);
        if probe.cuda.driver {
            assert!(probe.cuda.problem.is_some() || probe.cuda.driver_version.is_some());
        } else {
            assert!(probe.reason.contains("libcuda.so.1"), "{}", probe.reason);
            assert!(probe.cuda.devices.is_empty());
        }
    }

    #[test]
    fn the_reason_says_what_was_found() {
        let card = CudaDevice { name: "NVIDIA H200".into(), memory_bytes: 1 };
        let found = CudaFound {
            driver: true,
            driver_version: Some(13_000),
            devices: vec![card.clone(), card],
            ..CudaFound::default()
        };
        let reason = describe(&found);
        assert!(reason.contains("NVIDIA H200 and 1 more (driver 13.0)"), "{reason}");
        let broken = CudaFound { driver: true, problem: Some("no device".into()), ..CudaFound::default() };
        assert!(describe(&broken).contains("cannot be used: no device"));
        assert!(describe(&CudaFound { driver: true, ..CudaFound::default() }).contains("shows no device"));
    }
}
