//! [`Budget`]: how much of a GPU's memory may be used, and how much is.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::{CudaContext, result, sys};

use super::context::Gpu;
use super::error::{CudaError, During};

/// Memory of a GPU that is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of live buffers.
    pub used: usize,
    /// The most there ever were.
    pub peak: usize,
    /// How many there may be.
    pub budget: usize,
}

/// How much of a GPU's memory may be used, and how much is.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    /// `most` bytes, or nine tenths of what is free if that is 0. The driver's pool is set to keep as much.
    pub fn of_gpu(context: &CudaContext, gpu: &Gpu, most: u64) -> Result<Arc<Self>, CudaError> {
        let asking = "asking for free memory";
        let (free, _total) = context.mem_get_info().during(asking, || gpu.name.clone())?;
        let limit = match usize::try_from(most) {
            Ok(0) => free / 10 * 9,
            Ok(most) => most,
            Err(_) => usize::MAX,
        };
        if gpu.allocates_in_order {
            let mut keep = limit as u64;
            // SAFETY: the device is open; this attribute is a 64-bit number, to which the pointer is.
            let set = unsafe {
                result::device::get_default_mem_pool(context.cu_device()).and_then(|pool| {
                    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                    result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast())
                })
            };
            set.during("setting up the pool of memory", || format!("{limit} bytes"))?;
        }
        Ok(Self::new(limit))
    }

    pub fn in_use(&self) -> MemoryUse {
        MemoryUse {
            used: self.used.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
            budget: self.limit,
        }
    }

    /// Sets `bytes` aside for `operation`.
    pub fn reserve(
        self: &Arc<Self>,
        operation: &'static str,
        bytes: usize,
    ) -> Result<Reservation, CudaError> {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(Reservation { budget: self.clone(), bytes })
            }
            Err(_) => Err(self.refusal(operation, &format!("{bytes} bytes"))),
        }
    }

    pub fn refusal(&self, operation: &'static str, asked: &str) -> CudaError {
        let MemoryUse { used, budget, .. } = self.in_use();
        let detail = format!(
            "{asked}, and {used} of the {budget} bytes of the GPU's budget are in use; raise \
             device.memory_bytes_max, free the GPU, or ask for less"
        );
        CudaError::OutOfMemory { operation, detail }
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_refuses_in_words_and_gives_back() {
        let budget = Budget::new(1000);
        let first = budget.reserve("gathering", 600).unwrap();
        let refused = budget.reserve("sampling", 500).unwrap_err();
        assert!(refused.is_out_of_memory());
        let message = refused.to_string();
        for part in ["sampling", "500 bytes", "600 of the 1000 bytes", "device.memory_bytes_max"] {
            assert!(message.contains(part), "{message}");
        }
        let second = budget.reserve("sampling", 400).unwrap();
        assert_eq!(budget.in_use(), MemoryUse { used: 1000, peak: 1000, budget: 1000 });
        drop(first);
        assert_eq!(budget.in_use(), MemoryUse { used: 400, peak: 1000, budget: 1000 });
        assert!(budget.reserve("anything", usize::MAX).is_err());
        drop(second);
        assert_eq!(budget.in_use().used, 0);
    }

    #[test]
    fn threads_never_get_more_than_the_budget_together() {
        let budget = Budget::new(64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        if let Ok(share) = budget.reserve("test", 24) {
                            assert!(budget.in_use().used <= 64);
                            drop(share);
                        }
                    }
                });
            }
        });
        let MemoryUse { used, peak, .. } = budget.in_use();
        assert_eq!((used, (24..=64).contains(&peak)), (0, true));
    }
}
