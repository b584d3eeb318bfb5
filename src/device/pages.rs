//! The size of the pages that the kernel gives this process.
//!
//! A read at a random place of a table beyond the caches pays for the look-up of its page as well, in a virtual machine
//! twice; with pages of 2 MiB nearly every look-up is at hand. But a page of which one byte is used counts as a whole
//! one, and allocators ask for big pages too: who has a bound on memory wants memory to follow use instead.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

/// Bytes of a big page; smaller buffers gain nothing.
const BIG: usize = 2 << 20;
/// Bytes from which on a buffer asks for big pages.
const FROM: usize = 8 << 20;

/// From now on memory comes in the smallest pages there are, whoever asks for others.
///
/// # Errors
/// The kernel does not know that; the process may be larger than what it uses.
pub fn keep_pages_small() -> io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

/// Asks the kernel to back the reserved memory of `values` with big pages, before it is first written. Changes
/// nothing but time; a system that has none ignores it.
pub fn ask_for_big<T>(values: &mut Vec<T>) {
    let spare = values.spare_capacity_mut();
    let bytes = size_of_val(spare);
    if bytes >= FROM {
        ask_for_big_at(NonNull::from(spare).cast(), bytes);
    }
}

/// The same for `bytes` of memory from `begin` on, as far as they fill big pages.
pub fn ask_for_big_at(begin: NonNull<u8>, bytes: usize) {
    let head = begin.align_offset(BIG);
    if head >= bytes {
        return;
    }
    let length = (bytes - head) / BIG * BIG;
    let begin = begin.as_ptr().wrapping_add(head);
    // SAFETY: the advice does not change what any address holds, nor whether it can be reached.
    let advised = unsafe { rustix::mm::madvise(begin.cast(), length, rustix::mm::Advice::LinuxHugepage) };
    // Without big pages all is as right, and slower.
    let _ = advised;
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_of_any_size_can_be_asked_for() {
        for len in [0_usize, 1, 1 << 20, 5 << 20] {
            let mut values: Vec<u64> = Vec::with_capacity(len);
            super::ask_for_big(&mut values);
            values.resize(len, 7);
            assert!(values.iter().all(|v| *v == 7));
        }
    }
}
