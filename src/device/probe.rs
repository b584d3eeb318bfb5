//! [`probe`]: which device this machine offers, which one is chosen, and why, in words for people.
//!
//! The CUDA libraries are looked for at run time. `cudarc` panics when a library is missing, so each one is
//! asked for with `is_culib_present` first, and the calls into the driver run behind `catch_unwind` because a
//! driver too old for an entry point is reported as a panic as well. A probe never fails and never panics.

#![allow(unsafe_code)]

use cudarc::driver::{result, sys};

use super::{Device, cuda};

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
    /// The version (major, minor) of the run-time compiler (libnvrtc), if it can be loaded.
    pub nvrtc: Option<(i32, i32)>,
    /// The newest CUDA version the driver supports, `1000 * major + 10 * minor`.
    pub driver_version: Option<i32>,
    /// The GPUs, in the driver's order.
    pub devices: Vec<CudaDevice>,
    /// Why the driver could not be used although its library is there.
    pub problem: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Its marketing name.
    pub name: String,
    /// Its memory in bytes.
    pub memory_bytes: usize,
    /// What kernels are compiled for on it, e.g. `sm_90`.
    pub architecture: String,
    /// Its place on the bus, as `domain:bus:device.function` in small hexadecimal digits.
    pub bus: String,
}

/// Looks for accelerators and chooses a device. Takes some milliseconds without a driver, up to a second with one.
#[must_use]
pub fn probe() -> Probe {
    // SAFETY: loading a library runs its initializers; these are NVIDIA's own, from the system's library path.
    let mut found = unsafe {
        CudaFound {
            driver: sys::is_culib_present(),
            nvrtc: cuda::nvrtc_version().ok(),
            ..CudaFound::default()
        }
    };
    if found.driver {
        match std::panic::catch_unwind(ask_driver) {
            Ok(Ok((version, devices))) => {
                found.driver_version = Some(version);
                found.devices = devices;
            }
            Ok(Err(problem)) => found.problem = Some(problem),
            Err(_) => found.problem = Some("the driver library lacks an entry point that is needed".into()),
        }
    }
    Probe { chosen: Device::Cpu, reason: format!("cpu: {}", describe(&found)), cuda: found }
}

fn ask_driver() -> Result<(i32, Vec<CudaDevice>), String> {
    let message = |error: result::DriverError| error.to_string();
    result::init().map_err(message)?;
    let mut version = 0;
    // SAFETY: the driver library is present and initialized; the pointer is to a live integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(message)?;
    let count = result::device::get_count().map_err(message)?;
    let devices = (0..count).map(|ordinal| {
        let device = result::device::get(ordinal)?;
        let name = result::device::get_name(device)?;
        // SAFETY: `device` was just returned by the driver.
        let memory_bytes = unsafe { result::device::total_mem(device) }?;
        // SAFETY: as above.
        let ask = |what| unsafe { result::device::get_attribute(device, what) };
        let major = ask(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = ask(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let architecture = cuda::architecture(major, minor);
        Ok(CudaDevice { name, memory_bytes, architecture, bus: bus_of(device)? })
    });
    Ok((version, devices.collect::<Result<_, _>>().map_err(message)?))
}

/// The place of a GPU on the bus.
fn bus_of(device: sys::CUdevice) -> Result<String, result::DriverError> {
    let mut text = [0_u8; 32];
    // SAFETY: the pointer is to as many bytes as are passed; `device` came from the driver.
    unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, device) }.result()?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).to_lowercase())
}

impl CudaFound {
    /// Driver, GPUs and libraries in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        let version = self.driver_version.map_or("none".into(), shown);
        let mut parts = vec![format!("driver for CUDA {version}")];
        for (number, device) in self.devices.iter().enumerate() {
            let CudaDevice { name, memory_bytes, architecture, bus } = device;
            let gib = *memory_bytes as f64 / f64::from(1 << 30);
            parts.push(format!("GPU {number} {name} ({architecture}, {gib:.1} GiB, at {bus})"));
        }
        parts.push(self.nvrtc.map_or("no NVRTC".into(), |(major, minor)| format!("NVRTC {major}.{minor}")));
        parts.join(", ")
    }
}

/// A version as the driver reports it, for people.
fn shown(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
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
    let version = shown(cuda.driver_version.unwrap_or(0));
    format!("device.use = \"auto\" found {}{more} (driver {version})", first.name)
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
        let gpu = CudaDevice {
            name: "NVIDIA H200".into(),
            memory_bytes: 141 << 30,
            architecture: "sm_90".into(),
            bus: "0000:65:00.0".into(),
        };
        let found = CudaFound {
            driver: true,
            driver_version: Some(13_000),
            devices: vec![gpu.clone(), gpu],
            ..CudaFound::default()
        };
        let reason = describe(&found);
        assert!(reason.contains("NVIDIA H200 and 1 more (driver 13.0)"), "{reason}");
        let all = found.describe();
        assert!(
            all.starts_with(
                "driver for CUDA 13.0, GPU 0 NVIDIA H200 (sm_90, 141.0 GiB, at 0000:65:00.0), GPU 1 "
            ) && all.ends_with("no NVRTC"),
            "{all}"
        );
        let libraries = CudaFound { nvrtc: Some((13, 0)), ..CudaFound::default() };
        assert_eq!(libraries.describe(), "driver for CUDA none, NVRTC 13.0");
        let broken = CudaFound { driver: true, problem: Some("no device".into()), ..CudaFound::default() };
        assert!(describe(&broken).contains("cannot be used: no device"));
        assert!(describe(&CudaFound { driver: true, ..CudaFound::default() }).contains("shows no device"));
    }
}
