//! [`Run`]: one request to the kernel. Extents that follow one another become one, long ones several.
//!
//! Both engines take their requests from here, so both agree on where a read that came short goes on and on
//! what the end of the file means. Knows nothing of how a request is made.

use std::io;

use super::{DiskError, Extent, PAGE_BYTES};

/// Most bytes of one request: long reads are cut, so that their parts run side by side.
const RUN_BYTES: usize = 512 * 1024;

/// Consecutive bytes of the file and where they stand in the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// Where in the file.
    pub offset: u64,
    /// Where in the buffer.
    pub at: usize,
    /// How many bytes; whole pages.
    pub bytes: usize,
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub run: Run,
    pub source: io::Error,
}

impl Failed {
    /// As an error of reading the file at `path`.
    pub fn reading(self, path: &std::path::Path) -> DiskError {
        let Run { offset, bytes, .. } = self.run;
        DiskError { operation: "reading", path: path.to_owned(), offset, bytes, source: self.source }
    }
}

impl Run {
    /// Takes note that the first `got` bytes are done. Returns whether all are.
    ///
    /// # Errors
    /// Not even a page was: a file of whole pages ends there.
    pub fn advance(&mut self, got: usize) -> io::Result<bool> {
        // Direct requests begin at pages, so a piece of a page counts as nothing.
        let whole = if got >= self.bytes { self.bytes } else { got / PAGE_BYTES * PAGE_BYTES };
        if whole == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += whole as u64;
        self.at += whole;
        self.bytes -= whole;
        Ok(self.bytes == 0)
    }
}

/// The requests that read `extents` into a buffer, one after another from its begin, and their bytes.
pub(super) fn runs(extents: &[Extent]) -> (Vec<Run>, usize) {
    let mut runs: Vec<Run> = Vec::with_capacity(extents.len());
    let mut at = 0;
    for extent in extents {
        let mut run = Run { offset: extent.offset(), at, bytes: extent.bytes() };
        at += run.bytes;
        while run.bytes > 0 {
            let joined = runs.last_mut().filter(|last| last.offset + last.bytes as u64 == run.offset);
            let taken = match joined {
                Some(last) if last.bytes < RUN_BYTES => {
                    let taken = run.bytes.min(RUN_BYTES - last.bytes);
                    last.bytes += taken;
                    taken
                }
                _ => {
                    let taken = run.bytes.min(RUN_BYTES);
                    runs.push(Run { bytes: taken, ..run });
                    taken
                }
            };
            run = Run { offset: run.offset + taken as u64, at: run.at + taken, bytes: run.bytes - taken };
        }
    }
    (runs, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_that_follow_one_another_are_one_request_and_long_ones_several() {
        let extent = |page, pages| Extent { page, pages };
        let (found, bytes) = runs(&[extent(3, 1), extent(4, 2), extent(9, 1), extent(8, 1)]);
        let page = PAGE_BYTES;
        let run = |first: usize, at: usize, pages: usize| Run {
            offset: (first * page) as u64,
            at: at * page,
            bytes: pages * page,
        };
        assert_eq!((found, bytes), (vec![run(3, 0, 3), run(9, 3, 1), run(8, 4, 1)], 5 * page));
        let (found, _) = runs(&[extent(0, 100), extent(100, 200)]);
        assert_eq!(found, [run(0, 0, 128), run(128, 128, 128), run(256, 256, 44)]);
    }

    #[test]
    fn a_short_read_goes_on_at_a_page_and_nothing_is_the_end() {
        let mut run = Run { offset: 8192, at: 0, bytes: 3 * PAGE_BYTES };
        assert!(!run.advance(PAGE_BYTES + 17).unwrap());
        assert_eq!(run, Run { offset: 12288, at: PAGE_BYTES, bytes: 2 * PAGE_BYTES });
        assert_eq!(run.advance(17).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(run.advance(2 * PAGE_BYTES).unwrap());
    }
}
