//! [`Shortened`]: lists that deletions shortened, for whoever keeps copies of lists (`mirror`).
//!
//! A copy follows the store at its own pace, and a deletion that the store has carried out is to show in it at once,
//! at whatever position the copy is. So every list that lost entries is noted for each copy, after they are gone,
//! until it asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use hashbrown::HashSet;
use parking_lot::{Mutex, RwLock};

use crate::event::{EdgeId, NodeId};

/// Lists that lost entries since somebody asked.
#[derive(Debug, Default)]
pub(super) struct Shortened {
    /// Whose.
    pub nodes: HashSet<NodeId>,
    /// One past the position of the last deletion: records from here on are as the log has them.
    pub until: EdgeId,
}

impl Shortened {
    fn deleted_at(&mut self, until: u64) {
        self.until = self.until.max(EdgeId(until));
    }
}

/// Those who want to know.
#[derive(Default)]
pub(super) struct Copies {
    watches: RwLock<Vec<Weak<Mutex<Shortened>>>>,
    /// One past the position of the last deletion, which may be under way.
    until: AtomicU64,
}

impl Copies {
    /// From now on deletions are noted in what is returned, as long as it lives.
    pub fn watch(&self) -> Arc<Mutex<Shortened>> {
        let watch = Arc::<Mutex<Shortened>>::default();
        let mut watches = self.watches.write();
        watches.retain(|copy| copy.strong_count() > 0);
        watches.push(Arc::downgrade(&watch));
        drop(watches);
        // What one that is under way noted before is not in the lists any more, but may be in batches that follow.
        watch.lock().deleted_at(self.until.load(Ordering::Acquire));
        watch
    }

    /// The deletion at `position` took entries from the list of `node`.
    pub fn note(&self, node: NodeId, position: u64) {
        let until = position + 1;
        self.until.fetch_max(until, Ordering::AcqRel);
        for copy in self.watches.read().iter().filter_map(Weak::upgrade) {
            let mut copy = copy.lock();
            copy.nodes.insert(node);
            copy.deleted_at(until);
        }
    }
}
