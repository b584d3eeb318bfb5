//! The size of the pages that the kernel gives this process.
//!
//! An allocator asks for huge pages, 2 MiB at a time, which make random reads of large memory faster; and a page of
//! which one byte is used counts as a whole one. Who has a bound on memory wants it to follow use instead.

use std::io;

/// From now on memory comes in the smallest pages there are.
///
/// # Errors
/// The kernel does not know the wish; the process may be larger than what it uses.
pub fn keep_pages_small() -> io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}
