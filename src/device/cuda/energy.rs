//! [`EnergyMeter`]: the energy that a GPU has taken, as NVIDIA's management library (NVML) counts it. Three functions
//! of its interface are needed, which are found at run time.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};

use libloading::Library;

/// Its name without a version is there only where it can be linked to.
const LIBRARY: &str = "libnvidia-ml.so.1";
const SUCCESS: c_int = 0;

// SAFETY: a type of nvml.h; who calls one promises that its pointers are of a device and of a live integer.
type Energy = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int;

/// A GPU whose energy is counted: that of all of the board, whoever uses it.
pub struct EnergyMeter {
    energy: Energy,
    device: *mut c_void,
    /// Keeps the function and the device.
    _library: Library,
}

impl EnergyMeter {
    /// Of the GPU at this place on the bus (`domain:bus:device.function`); `None` where the library is missing or does
    /// not count.
    #[must_use]
    pub fn of(bus: &str) -> Option<Self> {
        let bus = CString::new(bus).ok()?;
        // SAFETY: loading a library runs its initializers; these are NVIDIA's own, from the system's library path. The
        // types are those of nvml.h, which versions of a function's name fix.
        let meter = unsafe {
            let library = Library::new(LIBRARY).ok()?;
            let init = library.get::<unsafe extern "C" fn() -> c_int>(c"nvmlInit_v2").ok()?;
            let find = library
                .get::<unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int>(
                    c"nvmlDeviceGetHandleByPciBusId_v2",
                )
                .ok()?;
            let energy: Energy = *library.get(c"nvmlDeviceGetTotalEnergyConsumption").ok()?;
            let mut device = std::ptr::null_mut();
            let found = init() == SUCCESS && find(bus.as_ptr(), &raw mut device) == SUCCESS;
            found.then_some(Self { energy, device, _library: library })?
        };
        meter.joules().is_some().then_some(meter)
    }

    /// Joules since the driver was loaded.
    #[must_use]
    pub fn joules(&self) -> Option<f64> {
        let mut millijoules = 0;
        // SAFETY: the library is loaded and initialized as long as this lives, and has found the device; the pointer is
        // to a live integer.
        let result = unsafe { (self.energy)(self.device, &raw mut millijoules) };
        #[allow(clippy::cast_precision_loss)] // exact for a thousand years
        (result == SUCCESS).then_some(millijoules as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_or_the_gpu_nothing_is_counted() {
        assert!(EnergyMeter::of("ffff:ff:ff.f").is_none() && EnergyMeter::of("a\0b").is_none());
    }
}
