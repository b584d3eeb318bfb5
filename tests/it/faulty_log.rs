//! The disk in memory under a log that fails on command, which unit tests use too.

use evergraph::log::{Access, LogFile, LogStorage};

#[allow(dead_code, reason = "unit tests call the rest")]
#[path = "../../src/log/tests/faulty.rs"]
mod faulty;

pub use faulty::MemoryDisk;
