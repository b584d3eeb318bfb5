//! [`TapePool`]: buffers between steps. A tape takes from it and gives everything back when it is dropped, so
//! that a steady step touches the same memory again and never asks the system for big blocks.

use std::collections::BTreeMap;

use crate::device::{self, Device, DeviceBuffer};

use super::Tensor;

/// Buffers that wait for their next use, by size class. One pool serves one tape at a time; an empty pool is
/// only slower.
#[derive(Debug, Default)]
pub struct TapePool {
    free: BTreeMap<usize, Vec<DeviceBuffer<f32>>>,
    bytes: usize,
}

/// The smallest size class that holds `len` values: four classes per power of two, at least 64 values.
fn size_class(len: usize) -> usize {
    device::size_class(len, 64, 16)
}

impl TapePool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that wait in the pool.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A tensor whose values are whatever was there before: write every one.
    #[must_use]
    pub fn take(&mut self, device: &Device, rows: usize, cols: usize) -> Tensor {
        if *device != Device::Cpu {
            // A GPU's work keeps its memory itself.
            return Tensor::room(device, rows, cols);
        }
        let len = rows * cols;
        let class = size_class(len);
        // A bigger one will do: sizes vary from step to step, and not every class should keep its own.
        let waiting = self.free.range_mut(class..=2 * class).find_map(|(_, list)| list.pop());
        let mut buffer = match waiting {
            Some(buffer) => {
                self.bytes -= buffer.capacity() * size_of::<f32>();
                buffer
            }
            None => DeviceBuffer::zeros(device, class),
        };
        buffer.show(len);
        Tensor::over(rows, cols, buffer)
    }

    /// Like [`take`](Self::take), with every value zero.
    #[must_use]
    pub fn take_zeroed(&mut self, device: &Device, rows: usize, cols: usize) -> Tensor {
        let mut tensor = self.take(device, rows, cols);
        tensor.clear();
        tensor
    }

    /// Keeps a tensor's memory for later.
    pub fn give(&mut self, tensor: Tensor) {
        if *tensor.device() != Device::Cpu {
            return;
        }
        let buffer = tensor.into_buffer();
        // Only buffers of an exact class can be found again; foreign ones are let go.
        if buffer.capacity() != 0 && size_class(buffer.capacity()) == buffer.capacity() {
            self.bytes += buffer.capacity() * size_of::<f32>();
            self.free.entry(buffer.capacity()).or_default().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_memory_comes_back() {
        let mut pool = TapePool::new();
        let tensor = pool.take(&Device::Cpu, 10, 100);
        let address = tensor.data().as_ptr();
        pool.give(tensor);
        assert!(pool.bytes() >= 4000);
        let again = pool.take_zeroed(&Device::Cpu, 99, 10);
        assert_eq!(again.data().as_ptr(), address);
        assert_eq!(again.shape(), (99, 10));
        assert!(again.data().iter().all(|v| *v == 0.0));
        assert_eq!(pool.bytes(), 0);
    }

    #[test]
    fn a_bigger_buffer_serves_a_smaller_wish_but_not_a_tiny_one() {
        let mut pool = TapePool::new();
        let tensor = pool.take(&Device::Cpu, 1, 4000);
        let address = tensor.data().as_ptr();
        pool.give(tensor);
        let tiny = pool.take(&Device::Cpu, 1, 100);
        assert_ne!(tiny.data().as_ptr(), address);
        let smaller = pool.take(&Device::Cpu, 1, 2500);
        assert_eq!(smaller.data().as_ptr(), address);
        pool.give(smaller);
        assert_eq!(pool.bytes(), 4096 * 4);
    }

    #[test]
    fn classes_are_stable_and_waste_less_than_a_quarter() {
        for len in [0, 1, 63, 64, 65, 100, 1000, 4096, 4097, 1_000_003] {
            let class = size_class(len);
            assert!(class >= len && class.is_multiple_of(16), "{len} {class}");
            assert_eq!(size_class(class), class, "{len}");
            assert!(len < 128 || class * 3 <= len * 4, "{len} {class}");
        }
    }
}
