//! [`Shortened`]: lists that deletions shortened, for whoever keeps copies of lists (`mirror`).
//!
//! A copy follows the store at its own pace, and a deletion that the store has carried out is to show in it at once, at
//! whatever position the copy is. So each copy is noted every list that lost entries, after they are gone, until it asks.

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

/// Those who want to know.
#[derive(Default)]
pub(super) struct Copies(RwLock<Vec<Weak<Mutex<Shortened>>>>);

impl Copies {
    /// From now on deletions are noted in what is returned, as long as it lives.
    pub fn watch(&self) -> Arc<Mutex<Shortened>> {
        let watch = Arc::default();
        let mut copies = self.0.write();
        copies.retain(|copy| copy.strong_count() > 0);
        copies.push(Arc::downgrade(&watch));
        watch
    }

    /// The deletion at `position` took entries from the list of `node`.
    pub fn note(&self, node: NodeId, position: u64) {
        for copy in self.0.read().iter().filter_map(Weak::upgrade) {
            let mut copy = copy.lock();
            copy.nodes.insert(node);
            copy.until = copy.until.max(EdgeId(position + 1));
        }
    }
}
