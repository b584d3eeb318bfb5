//! [`PageBuffer`]: memory that whole pages are read into, aligned to their size as direct reads want it.

use bytemuck::{Pod, Zeroable};

/// Bytes of a page: what disks and the kernel's memory are cut into.
pub const PAGE_BYTES: usize = 4096;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

#[allow(unsafe_code)]
// SAFETY: an array of bytes without padding; every bit pattern is one, zeros included.
unsafe impl Zeroable for Page {}
#[allow(unsafe_code)]
// SAFETY: as above; the alignment is that of the type, and its size is a multiple of it.
unsafe impl Pod for Page {}

/// Pages in memory, each aligned to 4 KiB.
#[derive(Default)]
pub struct PageBuffer {
    pages: Vec<Page>,
}

impl PageBuffer {
    /// `pages` pages of zeros.
    #[must_use]
    pub fn zeros(pages: usize) -> Self {
        Self { pages: vec![Page::zeroed(); pages] }
    }

    /// Makes room for `pages` pages at least; what is there stays.
    pub fn grow(&mut self, pages: usize) {
        if self.pages.len() < pages {
            self.pages.resize(pages, Page::zeroed());
        }
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.pages)
    }

    /// All bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_keep_what_they_hold() {
        let mut buffer = PageBuffer::zeros(3);
        buffer.bytes_mut()[PAGE_BYTES] = 7;
        buffer.grow(100);
        buffer.grow(2);
        assert_eq!((buffer.pages(), buffer.bytes().len()), (100, 100 * PAGE_BYTES));
        assert_eq!(buffer.bytes().as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!((buffer.bytes()[PAGE_BYTES], buffer.bytes()[0]), (7, 0));
    }
}
