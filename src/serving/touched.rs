//! Which nodes have a newer row than whoever follows them has taken in, and which were ever a destination: two bits per
//! node, set by the learner while it publishes. The [live index](super::LiveIndex) and the
//! [change feed](super::ChangeFeed) follow one of these each.
//!
//! Destinations are always recorded, touched nodes only when somebody follows. A node that changes often between two
//! looks costs one bit, so there is no queue that could grow.

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::event::NodeId;

/// Nodes of a page.
const PAGE_NODES: usize = 4096;
const WORDS: usize = PAGE_NODES / 64;

/// The bits, by node.
#[derive(Default)]
pub struct TouchedNodes {
    followed: AtomicBool,
    /// Below zero for a moment where a node is taken while it is touched.
    count: AtomicIsize,
    pages: RwLock<Vec<Page>>,
}

struct Page {
    touched: [AtomicU64; WORDS],
    destinations: [AtomicU64; WORDS],
}

/// The page, the word in it and the bit in that of a node.
fn place(node: NodeId) -> (usize, usize, u64) {
    let inside = node.index() % PAGE_NODES;
    (node.index() / PAGE_NODES, inside / 64, 1 << (inside % 64))
}

impl TouchedNodes {
    /// Records touched nodes from now on.
    pub fn follow(&self) {
        self.followed.store(true, Ordering::Release);
    }

    /// `node` has another row, or none any more.
    pub fn touch(&self, node: NodeId) {
        if !self.followed.load(Ordering::Acquire) {
            return;
        }
        self.set(node, |page, word, bit| {
            if page.touched[word].fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                self.count.fetch_add(1, Ordering::AcqRel);
            }
        });
    }

    /// `node` is the destination of an event.
    pub fn set_destination(&self, node: NodeId) {
        self.set(node, |page, word, bit| {
            page.destinations[word].fetch_or(bit, Ordering::AcqRel);
        });
    }

    /// `node` was deleted.
    pub fn forget(&self, node: NodeId) {
        let (page, word, bit) = place(node);
        if let Some(page) = self.pages.read().get(page) {
            page.destinations[word].fetch_and(!bit, Ordering::AcqRel);
        }
        self.touch(node);
    }

    /// Whether `node` was the destination of an event.
    #[must_use]
    pub fn is_destination(&self, node: NodeId) -> bool {
        let (page, word, bit) = place(node);
        let pages = self.pages.read();
        pages.get(page).is_some_and(|page| page.destinations[word].load(Ordering::Acquire) & bit != 0)
    }

    /// Nodes that are touched.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire).max(0).unsigned_abs()
    }

    /// Takes the touched nodes: they are not touched any more.
    pub fn take(&self, out: &mut Vec<NodeId>) {
        let before = out.len();
        for (number, page) in self.pages.read().iter().enumerate() {
            for (word, bits) in page.touched.iter().enumerate() {
                if bits.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                let mut bits = bits.swap(0, Ordering::AcqRel);
                while bits != 0 {
                    let index = number * PAGE_NODES + word * 64 + bits.trailing_zeros() as usize;
                    out.extend(u32::try_from(index).map(NodeId));
                    bits &= bits - 1;
                }
            }
        }
        self.count.fetch_sub((out.len() - before).cast_signed(), Ordering::AcqRel);
    }

    /// Takes one node; whether it was touched.
    pub fn take_one(&self, node: NodeId) -> bool {
        let (page, word, bit) = place(node);
        let pages = self.pages.read();
        let Some(bits) = pages.get(page).map(|page| &page.touched[word]) else { return false };
        let was =
            bits.load(Ordering::Acquire) & bit != 0 && bits.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        self.count.fetch_sub(isize::from(was), Ordering::AcqRel);
        was
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.read().len() * size_of::<Page>()
    }

    fn set(&self, node: NodeId, change: impl FnOnce(&Page, usize, u64)) {
        if node == NodeId::NONE {
            return;
        }
        let (page, word, bit) = place(node);
        if page >= self.pages.read().len() {
            let mut pages = self.pages.write();
            let count = pages.len().max(page + 1);
            pages.resize_with(count, Page::new);
        }
        if let Some(page) = self.pages.read().get(page) {
            change(page, word, bit);
        }
    }
}

impl Page {
    fn new() -> Self {
        let words = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { touched: words(), destinations: words() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_touched_node_is_taken_once_and_none_is_kept_while_nobody_follows() {
        let (nodes, mut taken) = (TouchedNodes::default(), Vec::new());
        nodes.touch(NodeId(3));
        nodes.set_destination(NodeId(3));
        nodes.take(&mut taken);
        assert!(taken.is_empty() && nodes.is_destination(NodeId(3)));
        nodes.follow();
        for node in [9000, 3, 64, 3, 63] {
            nodes.touch(NodeId(node));
        }
        nodes.set_destination(NodeId(64));
        assert_eq!(nodes.count(), 4);
        nodes.take(&mut taken);
        assert_eq!(taken, [3, 63, 64, 9000].map(NodeId));
        assert!(nodes.is_destination(NodeId(64)) && !nodes.is_destination(NodeId(63)));
        assert!(!nodes.is_destination(NodeId(1_000_000)));
        nodes.forget(NodeId(64));
        assert!(!nodes.is_destination(NodeId(64)) && nodes.count() == 1);
        taken.clear();
        nodes.take(&mut taken);
        assert_eq!((taken, nodes.count()), (vec![NodeId(64)], 0));
        nodes.touch(NodeId(63));
        assert_eq!(
            [63, 63, 64, 1 << 20].map(|node| nodes.take_one(NodeId(node))),
            [true, false, false, false]
        );
        assert_eq!(nodes.count(), 0);
    }
}
