//! [`DeviceBuffer`]: a run of plain values on a device, aligned to 64 bytes so that a full vector never
//! straddles two cache lines.
//!
//! Host memory is a vector of 64-byte lines seen through `bytemuck`, so no unsafe code is needed and every
//! byte is always initialized. Memory of a GPU comes from the pool of its [`CudaWork`](super::cuda::CudaWork). A
//! buffer may be longer inside than it shows ([`DeviceBuffer::capacity`]): pools shrink and grow the visible part
//! without touching memory. Knows nothing of shapes.

use bytemuck::{Pod, Zeroable};

use super::cuda::{CudaBuffer, CudaError, DetachedCopy, PendingCopy, PooledBuffer};
use super::{Device, pages};

const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// The size in which memory for `len` of something is kept for later: four sizes to a power of two, at least `least`,
/// multiples of `unit`.
#[must_use]
pub fn size_class(len: usize, least: usize, unit: usize) -> usize {
    let len = len.max(least);
    let step = (len.checked_next_power_of_two().unwrap_or(len) / 8).max(unit);
    len.checked_next_multiple_of(step).unwrap_or(len)
}

/// `len` values of a plain type `T` on one device. On the CPU they begin on a line of 64 bytes.
#[derive(Clone)]
pub struct DeviceBuffer<T: Pod> {
    device: Device,
    memory: Memory<T>,
    len: usize,
}

#[derive(Clone)]
enum Memory<T: Pod> {
    Host(Vec<Line>),
    Gpu(PooledBuffer<T>),
}

impl<T: Pod> DeviceBuffer<T> {
    /// `len` zeros.
    #[must_use]
    pub fn zeros(device: &Device, len: usize) -> Self {
        let mut buffer = Self::room(device, len);
        if let Memory::Gpu(pooled) = &mut buffer.memory {
            pooled.clear();
        }
        buffer
    }

    /// `len` values: zeros on the CPU, whatever was there before on a GPU. Whoever asks writes every one.
    #[must_use]
    pub fn room(device: &Device, len: usize) -> Self {
        let memory = match device {
            Device::Cpu => {
                let count = (len * size_of::<T>()).div_ceil(LINE_BYTES);
                let mut lines = Vec::with_capacity(count);
                pages::ask_for_big(&mut lines);
                lines.resize(count, Line::zeroed());
                Memory::Host(lines)
            }
            Device::Cuda(work) => Memory::Gpu(work.pooled(len)),
        };
        Self { device: device.clone(), memory, len }
    }

    /// `len` zeros for what stays long: on a GPU, memory that goes back to the driver; none where that has no room.
    #[must_use]
    pub fn zeros_apart(device: &Device, len: usize) -> Option<Self> {
        let Device::Cuda(work) = device else { return Some(Self::zeros(device, len)) };
        let mut pooled = work.unpooled(len)?;
        pooled.clear();
        Some(Self { device: device.clone(), memory: Memory::Gpu(pooled), len })
    }

    /// A copy of `values`.
    #[must_use]
    pub fn from_slice(device: &Device, values: &[T]) -> Self {
        match device {
            Device::Cpu => {
                let mut buffer = Self::zeros(device, values.len());
                buffer.as_mut_slice().copy_from_slice(values);
                buffer
            }
            Device::Cuda(work) => {
                let memory = Memory::Gpu(work.upload(values));
                Self { device: device.clone(), memory, len: values.len() }
            }
        }
    }

    /// Where the values are.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of values the memory behind the buffer can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Host(lines) => lines.len() * LINE_BYTES / size_of::<T>(),
            Memory::Gpu(pooled) => pooled.capacity(),
        }
    }

    /// Shows `len` values of the memory behind the buffer; values not written before are zeros or stale.
    ///
    /// # Panics
    /// If `len` exceeds [`capacity`](Self::capacity).
    pub fn show(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a buffer of {} values cannot show {len}", self.capacity());
        self.len = len;
        if let Memory::Gpu(pooled) = &mut self.memory {
            pooled.show(len);
        }
    }

    /// The values, for a buffer in host memory.
    ///
    /// # Panics
    /// If it is on a GPU.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        match &self.memory {
            Memory::Host(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Gpu(_) => on_a_gpu(),
        }
    }

    /// The values for writing, for a buffer in host memory.
    ///
    /// # Panics
    /// If it is on a GPU.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Host(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Gpu(_) => on_a_gpu(),
        }
    }

    /// The memory on a GPU.
    ///
    /// # Errors
    /// There is none, because the GPU's work has a fault.
    ///
    /// # Panics
    /// If it is in host memory.
    pub fn on_gpu(&self) -> Result<&CudaBuffer<T>, CudaError> {
        match &self.memory {
            Memory::Gpu(pooled) => pooled.get(),
            Memory::Host(_) => in_host_memory(),
        }
    }

    /// The memory on a GPU, for writing.
    ///
    /// # Errors
    /// There is none, because the GPU's work has a fault.
    ///
    /// # Panics
    /// If it is in host memory.
    pub fn on_gpu_mut(&mut self) -> Result<&mut CudaBuffer<T>, CudaError> {
        match &mut self.memory {
            Memory::Gpu(pooled) => pooled.get_mut(),
            Memory::Host(_) => in_host_memory(),
        }
    }

    /// Sets every value to zero.
    pub fn clear(&mut self) {
        match &mut self.memory {
            Memory::Host(_) => self.as_mut_slice().fill(T::zeroed()),
            Memory::Gpu(pooled) => pooled.clear(),
        }
    }

    /// Asks a GPU for the values; none of a buffer in host memory.
    #[must_use]
    pub fn fetch(&self) -> Option<PendingCopy<T>> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Gpu(pooled) => Some(pooled.fetch(self.len)),
        }
    }

    /// Asks a GPU for the values, for any thread to wait for.
    ///
    /// # Errors
    /// The GPU's work has a fault.
    ///
    /// # Panics
    /// If they are in host memory.
    pub fn detach(&self) -> Result<DetachedCopy<T>, CudaError> {
        match &self.memory {
            Memory::Gpu(pooled) => pooled.detach(self.len),
            Memory::Host(_) => in_host_memory(),
        }
    }

    /// A copy of the values in host memory. Waits for a GPU; after a fault of one they are zeros.
    #[must_use]
    pub fn copy_to_host(&self) -> Vec<T> {
        match &self.memory {
            Memory::Host(_) => self.as_slice().to_vec(),
            Memory::Gpu(pooled) => pooled.read(self.len),
        }
    }
}

#[cold]
fn on_a_gpu() -> ! {
    panic!("values on a GPU were taken for values of the CPU")
}

#[cold]
fn in_host_memory() -> ! {
    panic!("values of the CPU were taken for values on a GPU")
}

impl<T: Pod + std::fmt::Debug> std::fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuffer").field("device", &self.device).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_round_trips() {
        for len in [0usize, 1, 15, 16, 17, 1000] {
            let zeros = DeviceBuffer::<f32>::zeros(&Device::Cpu, len);
            assert_eq!(zeros.as_slice().as_ptr() as usize % 64, 0, "len {len}");
            assert!(zeros.as_slice().iter().all(|v| *v == 0.0));
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let buffer = DeviceBuffer::from_slice(&Device::Cpu, &values);
            assert_eq!(buffer.copy_to_host(), values);
            assert_eq!(buffer.len(), len);
        }
    }

    #[test]
    fn shows_a_part_without_losing_the_rest() {
        let mut buffer = DeviceBuffer::from_slice(&Device::Cpu, &[1u64, 2, 3, 4, 5]);
        assert_eq!(buffer.capacity(), 8);
        buffer.show(2);
        assert_eq!(buffer.as_slice(), &[1, 2]);
        buffer.show(8);
        assert_eq!(buffer.as_slice(), &[1, 2, 3, 4, 5, 0, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "cannot show 9")]
    fn refuses_to_show_more_than_it_has() {
        DeviceBuffer::<u64>::zeros(&Device::Cpu, 8).show(9);
    }
}
