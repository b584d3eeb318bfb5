//! Big pages for big buffers. A read at a random place of a table beyond the caches pays for the look-up of its page
//! as well, in a virtual machine twice; with pages of 2 MiB nearly every look-up is at hand.

#![allow(unsafe_code)]

/// Bytes of a big page; smaller buffers gain nothing.
#[cfg(target_os = "linux")]
const BIG: usize = 2 << 20;
/// Bytes from which on a buffer asks for big pages.
#[cfg(target_os = "linux")]
const FROM: usize = 8 << 20;

/// Asks the system to back the reserved memory of `values` with big pages, before it is first written. Changes
/// nothing but time; a system that has none ignores it.
pub fn ask_for_big<T>(values: &mut Vec<T>) {
    #[cfg(target_os = "linux")]
    {
        let spare = values.spare_capacity_mut();
        let bytes = size_of_val(spare);
        let begin = spare.as_mut_ptr().cast::<u8>();
        let head = begin.align_offset(BIG);
        if bytes < FROM || head >= bytes {
            return;
        }
        let length = (bytes - head) / BIG * BIG;
        // SAFETY: the range lies inside the memory that the vector has reserved and that nobody else uses. The
        // advice does not change what any address holds.
        unsafe { libc::madvise(begin.add(head).cast(), length, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = values;
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
