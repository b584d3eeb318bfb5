//! [`EnergyMeter`]: the energy that a GPU has taken, as NVIDIA's management library (NVML) counts it. Three functions
//! of its interface are needed, which are found at run time.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use libloading::Library;

/// Its name without a version is there only where it can be linked to.
const LIBRARY: &str = "libnvidia-ml.so.1";
const SUCCESS: c_int = 0;

// SAFETY: types of nvml.h; who calls one has initialized the library, and passes live pointers.
type Init = unsafe extern "C" fn() -> c_int;
// SAFETY: as above.
type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
// SAFETY: as above.
type Energy = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int;

/// A GPU whose energy is counted: that of all of the board, whoever uses it.
pub struct EnergyMeter {
    energy: Energy,
    device: *mut c_void,
}

impl EnergyMeter {
    /// Of the GPU at this place on the bus (`domain:bus:device.function`); `None` where the library is missing or does
    /// not count.
    #[must_use]
    pub fn of(bus: &str) -> Option<Self> {
        let bus = CString::new(bus).ok()?;
        // SAFETY: loading a library runs its initializers; these are NVIDIA's own, from the system's library path.
        let library = unsafe { Library::new(LIBRARY) }.ok()?;
        // Initialized as it is from now on, it stays until the program ends.
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the types of this function and the next two are those of nvml.h, which a version in the name fixes.
        let init = unsafe { library.get::<Init>(c"nvmlInit_v2") }.ok()?;
        // SAFETY: as above.
        let find = unsafe { library.get::<Find>(c"nvmlDeviceGetHandleByPciBusId_v2") }.ok()?;
        // SAFETY: as above.
        let energy = *unsafe { library.get::<Energy>(c"nvmlDeviceGetTotalEnergyConsumption") }.ok()?;
        // SAFETY: it takes nothing, and may be called at any time.
        if unsafe { init() } != SUCCESS {
            return None;
        }
        let mut device = ptr::null_mut();
        // SAFETY: the library is initialized; the text ends with a zero, and the other pointer is to a live one.
        let found = unsafe { find(bus.as_ptr(), &raw mut device) };
        let meter = Self { energy, device };
        (found == SUCCESS && meter.joules().is_some()).then_some(meter)
    }

    /// Joules since the driver was loaded.
    #[must_use]
    pub fn joules(&self) -> Option<f64> {
        let mut millijoules = 0;
        // SAFETY: the library is initialized and has found the device; the pointer is to a live integer.
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
