//! [`CudaError`]: what went wrong on a GPU, while doing what, with which sizes, and what to do about it.
//!
//! Callers that go on distinguish two kinds: the GPU is full ([`CudaError::is_out_of_memory`]: ask for
//! less) and the GPU is lost ([`CudaError::is_lost`]: nothing on it works any more in this process; go on without
//! it). Work on a GPU is asynchronous, so an operation may report the fault of one that came before it.

use cudarc::driver::sys::CUresult;
use thiserror::Error;

use super::driver::Fault;

/// Why something on a GPU did not work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CudaError {
    /// A library, a GPU or a capability is not there.
    #[error("{operation}: {missing}")]
    Absent {
        /// What was tried.
        operation: &'static str,
        /// What is missing, and what to do.
        missing: String,
    },
    /// The budget or the GPU has no room.
    #[error("{operation}: out of memory: {detail}")]
    OutOfMemory {
        /// What was tried.
        operation: &'static str,
        /// How much was asked for, what is in use, and what to do.
        detail: String,
    },
    /// The GPU, or our context on it, cannot be used any more in this process.
    #[error("{operation} ({sizes}): the GPU is lost: {code}; go on without it, and restart to use it again")]
    Lost {
        /// What was tried.
        operation: &'static str,
        /// Its sizes.
        sizes: String,
        /// The driver's name of the fault.
        code: String,
    },
    /// The driver refused; the GPU still works.
    #[error("{operation} ({sizes}): the driver refused: {code}")]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// Its sizes.
        sizes: String,
        /// The driver's name of the fault.
        code: String,
    },
    /// A kernel does not compile, or is not what its launcher expects.
    #[error("kernels/{file} for {architecture}: {log}")]
    Kernel {
        /// The file.
        file: String,
        /// What it was compiled for.
        architecture: String,
        /// The compiler's message, or what does not fit.
        log: String,
    },
    /// Arguments that do not fit one another; nothing was done.
    #[error("{operation}: {mismatch}")]
    Arguments {
        /// What was tried.
        operation: &'static str,
        /// Which sizes do not fit.
        mismatch: String,
    },
}

impl CudaError {
    /// Whether less would have fitted.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }

    /// Whether nothing on the GPU works any more in this process.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// The driver's error in `operation`, with its `sizes`.
    pub(super) fn of_driver(operation: &'static str, sizes: String, fault: impl Into<Fault>) -> Self {
        let error = match fault.into() {
            Fault::Driver(error) => error,
            Fault::Simulator(code) => return Self::Lost { operation, sizes, code },
        };
        let code = format!("{:?}", error.0);
        if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            Self::OutOfMemory { operation, detail: format!("{sizes}: {code}; free memory, or ask for less") }
        } else if ends_the_context(error.0) {
            Self::Lost { operation, sizes, code }
        } else {
            Self::Refused { operation, sizes, code }
        }
    }
}

/// Results of the driver, with the operation and the sizes that they are about.
pub(super) trait During<T> {
    /// Names the operation; `sizes` is asked only after a fault.
    fn during(self, operation: &'static str, sizes: impl FnOnce() -> String) -> Result<T, CudaError>;
}

impl<T, E: Into<Fault>> During<T> for Result<T, E> {
    fn during(self, operation: &'static str, sizes: impl FnOnce() -> String) -> Result<T, CudaError> {
        self.map_err(|fault| CudaError::of_driver(operation, sizes(), fault))
    }
}

/// Faults after which every further call to the context fails as well: CUDA calls them sticky. A GPU that fell off the
/// bus, or whose memory failed, is among them.
fn ends_the_context(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::DriverError;

    fn of(code: CUresult) -> CudaError {
        CudaError::of_driver("gathering rows", "7 rows of 688 bytes".into(), DriverError(code))
    }

    #[test]
    fn full_and_lost_are_told_apart_and_name_operation_and_sizes() {
        let full = of(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let lost = of(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        let refused = of(CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(full.is_out_of_memory() && !full.is_lost());
        assert!(lost.is_lost() && !lost.is_out_of_memory());
        assert!(!refused.is_lost() && !refused.is_out_of_memory());
        for error in [full, lost, refused] {
            let message = error.to_string();
            assert!(
                message.starts_with("gathering rows") && message.contains("7 rows of 688 bytes"),
                "{message}"
            );
            assert!(message.contains("CUDA_ERROR_"), "{message}");
        }
    }
}
