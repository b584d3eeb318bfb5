//! [`Faulty`]: a file of pages in memory that fails on request, for tests of whoever keeps pages.
//!
//! A plan checks each operation and decides what happens to it: it works, it fails as a disk or a full disk
//! does, or it lies as torn and lost writes do. The same plan gives the same faults, always.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{DiskError, Extent, PAGE_BYTES, PageBuffer, PageFile};

/// One operation on one extent, as the plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Whether it writes; else it reads.
    pub writes: bool,
    /// How many operations of the same kind came before it.
    pub number: u64,
    /// What is read or written.
    pub extent: Extent,
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What should.
    Works,
    /// It works, but takes this long.
    Slow(Duration),
    /// The disk reports an error. A write that fails has changed the first half of its bytes.
    Fails(io::ErrorKind),
    /// Only the first half of the bytes is read or written, without an error: a read has zeros for the rest,
    /// a write leaves what was there.
    Torn,
    /// A read gives zeros, a write changes nothing, without an error.
    Lost,
}

type Plan = dyn Fn(Operation) -> Fault + Send + Sync;

/// Pages in memory behind a plan of faults. Clones share them: a test may look at what another owns.
#[derive(Clone)]
pub struct Faulty {
    plan: Arc<Plan>,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    pages: BTreeMap<u64, Box<[u8]>>,
    reads: u64,
    writes: u64,
}

impl Faulty {
    /// An empty file on which `plan` decides.
    #[must_use]
    pub fn new(plan: impl Fn(Operation) -> Fault + Send + Sync + 'static) -> Self {
        Self { plan: Arc::new(plan), held: Arc::default() }
    }

    /// Whether the bytes of `part` stand anywhere in one page.
    #[must_use]
    pub fn contains(&self, part: &[u8]) -> bool {
        let mut found = false;
        self.each_page(|page| found |= page.windows(part.len()).any(|window| window == part));
        found
    }

    /// Calls `f` with every page that was written.
    pub fn each_page(&self, f: impl FnMut(&[u8])) {
        self.held.lock().pages.values().map(AsRef::as_ref).for_each(f);
    }

    /// Extents read and written so far.
    #[must_use]
    pub fn operations(&self) -> (u64, u64) {
        let held = self.held.lock();
        (held.reads, held.writes)
    }

    fn decide(&self, writes: bool, extent: Extent) -> Fault {
        let number = {
            let mut held = self.held.lock();
            let count = if writes { &mut held.writes } else { &mut held.reads };
            *count += 1;
            *count - 1
        };
        let fault = (self.plan)(Operation { writes, number, extent });
        if let Fault::Slow(time) = fault {
            std::thread::sleep(time);
        }
        fault
    }

    fn read_extent(&self, extent: Extent, into: &mut [u8]) -> io::Result<()> {
        let fault = self.decide(false, extent);
        if let Fault::Fails(kind) = fault {
            return Err(kind.into());
        }
        let held = self.held.lock();
        for (page, into) in (extent.page..).zip(into.chunks_exact_mut(PAGE_BYTES)) {
            // Past the last page is the end; a page in a hole is zeros, as in any file.
            match held.pages.get(&page) {
                Some(bytes) => into.copy_from_slice(bytes),
                None if held.pages.range(page..).next().is_some() => into.fill(0),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let kept = match fault {
            Fault::Torn => into.len() / 2,
            Fault::Lost => 0,
            _ => into.len(),
        };
        into[kept..].fill(0);
        Ok(())
    }

    fn write_extent(&self, extent: Extent, from: &[u8]) -> io::Result<()> {
        let fault = self.decide(true, extent);
        let kept = match fault {
            Fault::Fails(_) | Fault::Torn => from.len() / 2,
            Fault::Lost => 0,
            Fault::Works | Fault::Slow(_) => from.len(),
        };
        let mut held = self.held.lock();
        for (page, (i, from)) in (extent.page..).zip(from.chunks_exact(PAGE_BYTES).enumerate()) {
            let whole = kept.saturating_sub(i * PAGE_BYTES).min(PAGE_BYTES);
            let bytes = held.pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES].into());
            bytes[..whole].copy_from_slice(&from[..whole]);
        }
        match fault {
            Fault::Fails(kind) => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

fn failed(operation: &'static str, extent: Extent, source: io::Error) -> DiskError {
    let path = PathBuf::from("a file in memory");
    DiskError { operation, path, offset: extent.offset(), bytes: extent.bytes(), source }
}

impl PageFile for Faulty {
    fn read(&self, extents: &[Extent], into: &mut PageBuffer) -> Result<(), DiskError> {
        let mut rest = into.bytes_mut();
        for extent in extents {
            let (bytes, after) = rest.split_at_mut(extent.bytes());
            self.read_extent(*extent, bytes).map_err(|source| failed("reading", *extent, source))?;
            rest = after;
        }
        Ok(())
    }

    fn write(&self, page: u64, from: &PageBuffer, pages: usize) -> Result<(), DiskError> {
        let extent = Extent { page, pages };
        let written = self.write_extent(extent, &from.bytes()[..extent.bytes()]);
        written.map_err(|source| failed("writing", extent, source))
    }

    fn discard_below(&self, page: u64) {
        self.held.lock().pages.retain(|&kept, _| kept >= page);
    }

    fn engine(&self) -> String {
        "memory, faulty".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_decides_what_happens() {
        let file = Faulty::new(|operation| match (operation.writes, operation.number) {
            (true, 1) => Fault::Fails(io::ErrorKind::StorageFull),
            (true, 2) => Fault::Lost,
            (false, 1) => Fault::Torn,
            (false, 2) => Fault::Fails(io::ErrorKind::Other),
            _ => Fault::Works,
        });
        let mut buffer = PageBuffer::zeros(1);
        buffer.bytes_mut().fill(1);
        file.write(5, &buffer, 1).unwrap();
        buffer.bytes_mut().fill(2);
        let error = file.write(6, &buffer, 1).unwrap_err();
        assert_eq!((error.offset, error.source.kind()), (6 * 4096, io::ErrorKind::StorageFull));
        file.write(5, &buffer, 1).unwrap();
        let at = |page| [Extent { page, pages: 1 }];
        file.read(&at(5), &mut buffer).unwrap();
        assert!(buffer.bytes().iter().all(|byte| *byte == 1), "the third write was lost");
        file.read(&at(5), &mut buffer).unwrap();
        assert_eq!((buffer.bytes()[2047], buffer.bytes()[2048]), (1, 0));
        assert_eq!(file.read(&at(5), &mut buffer).unwrap_err().source.kind(), io::ErrorKind::Other);
        assert_eq!(file.read(&at(7), &mut buffer).unwrap_err().source.kind(), io::ErrorKind::UnexpectedEof);
        file.read(&at(2), &mut buffer).unwrap();
        assert_eq!(buffer.bytes()[0], 0);
        assert_eq!((file.contains(&[1; 100]), file.contains(&[3]), file.operations()), (true, false, (5, 3)));
    }
}
