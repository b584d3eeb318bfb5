//! [`Bus`]: how many bytes went over the bus between the host and a GPU, counted where they are asked for.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes since the GPU was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusBytes {
    /// Copied to the GPU.
    pub to_gpu: u64,
    /// How many copies those were.
    pub copies_to_gpu: u64,
    /// Copied to the host.
    pub to_host: u64,
    /// Uploads to the graph and rows of edges, which kernels read in memory of the host. What they read there of the
    /// graph's older part is known on the GPU only, and not counted.
    pub read_in_place: u64,
}

/// Counts them.
#[derive(Debug, Default)]
pub(super) struct Bus {
    to_gpu: AtomicU64,
    copies_to_gpu: AtomicU64,
    to_host: AtomicU64,
    read_in_place: AtomicU64,
}

impl Bus {
    pub fn to_gpu(&self, bytes: usize) {
        self.to_gpu.fetch_add(bytes as u64, Ordering::Relaxed);
        self.copies_to_gpu.fetch_add(1, Ordering::Relaxed);
    }

    pub fn to_host(&self, bytes: usize) {
        self.to_host.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn read_in_place(&self, bytes: usize) {
        self.read_in_place.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> BusBytes {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [to_gpu, to_host, read_in_place] = [&self.to_gpu, &self.to_host, &self.read_in_place].map(of);
        BusBytes { to_gpu, copies_to_gpu: of(&self.copies_to_gpu), to_host, read_in_place }
    }
}
