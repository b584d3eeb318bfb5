//! The file of pages in memory that fails on command, which unit tests use too.

use evergraph::device::disk::{DiskError, Extent, PAGE_BYTES, PageBuffer, PageFile};

#[allow(dead_code, reason = "unit tests call the rest")]
#[path = "../../src/device/disk/tests/faulty.rs"]
mod faulty;

pub use faulty::{Fault, Faulty};
