//! [`Deletions`]: names of deleted nodes on their way to the catalog.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::catalog::{Catalog, CatalogError};
use crate::event::{NodeId, NodeKey};
use crate::graph::NodeDictionary;

/// Names that are written at a time.
const NAMES_MAX: usize = 1000;

/// The names of deleted nodes that the feed owes to its readers.
pub(in crate::daemon) struct Deletions {
    keys: Arc<NodeDictionary>,
    catalog: Arc<Mutex<Catalog>>,
    /// Names that the catalog has not taken yet, in order.
    taken: Mutex<Vec<String>>,
    /// Whether the catalog may have some.
    any: AtomicBool,
}

impl Deletions {
    pub(super) fn new(keys: Arc<NodeDictionary>, catalog: Arc<Mutex<Catalog>>) -> Self {
        Self { keys, catalog, taken: Mutex::default(), any: AtomicBool::new(true) }
    }

    /// Writes those that there are to the catalog. Calls `pulse` every so often.
    ///
    /// # Errors
    /// The catalog refuses: the next call tries them again.
    pub(in crate::daemon) fn record(&self, pulse: &dyn Fn()) -> Result<(), CatalogError> {
        let mut taken = self.taken.lock();
        taken.extend(self.keys.take_forgotten().iter().map(ToString::to_string));
        while !taken.is_empty() {
            let count = taken.len().min(NAMES_MAX);
            // Others use the catalog in between.
            self.catalog.lock().owe_deletions(&taken[..count])?;
            taken.drain(..count);
            self.any.store(true, Ordering::Release);
            pulse();
        }
        Ok(())
    }

    /// The node that has this name now.
    pub(super) fn has_now(&self, key: &NodeKey) -> Option<NodeId> {
        self.keys.lookup(key)
    }

    /// Whether the catalog may have some since this was asked last.
    pub(super) fn take_any(&self) -> bool {
        self.any.swap(false, Ordering::AcqRel)
    }

    /// The catalog still has some.
    pub(super) fn set_any(&self) {
        self.any.store(true, Ordering::Release);
    }
}
