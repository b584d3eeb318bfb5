//! [`Senders`]: for each node, the nodes whose waiting messages hold its memory row. The mailbox keeps it so that the
//! deletion of a node costs time in proportion to those messages, not to all nodes.
//!
//! A message has one sender, so the nodes of one sender are a doubly linked list through tables by node: a change costs
//! four memory accesses, and nothing is allocated per sender.

use crate::event::{NodeId, NodeTable};

const NONE: u32 = NodeId::NONE.0;

/// A node's neighbors in the list of its sender.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Link {
    sender: u32,
    before: u32,
    behind: u32,
}

impl Link {
    const EMPTY: Self = Self { sender: NONE, before: NONE, behind: NONE };
}

/// Who sent what waits for each node, and the reverse.
#[derive(Clone, Debug)]
pub(super) struct Senders {
    links: NodeTable<Link>,
    /// By sender, the node whose message it sent last.
    heads: NodeTable<u32>,
}

impl Default for Senders {
    fn default() -> Self {
        Self { links: NodeTable::new(Link::EMPTY), heads: NodeTable::new(NONE) }
    }
}

impl Senders {
    /// Makes `sender` the sender for `node`; `NodeId::NONE`: nobody.
    pub fn set(&mut self, node: NodeId, sender: NodeId) {
        let Link { sender: old, before, behind } = self.links.get(node);
        if old == sender.0 {
            return;
        }
        if old != NONE {
            match before {
                NONE => self.heads.set(NodeId(old), behind),
                before => self.change(before, |link| link.behind = behind),
            }
            if behind != NONE {
                self.change(behind, |link| link.before = before);
            }
        }
        let mut link = Link { sender: sender.0, ..Link::EMPTY };
        if sender != NodeId::NONE {
            link.behind = self.heads.get(sender);
            self.heads.set(sender, node.0);
            if link.behind != NONE {
                self.change(link.behind, |link| link.before = node.0);
            }
        }
        self.links.set(node, link);
    }

    fn change(&mut self, node: u32, change: impl FnOnce(&mut Link)) {
        let mut link = self.links.get(NodeId(node));
        change(&mut link);
        self.links.set(NodeId(node), link);
    }

    /// The nodes for which something waits from `sender`, the latest first.
    pub fn nodes_of(&self, sender: NodeId) -> impl Iterator<Item = NodeId> {
        let head = self.heads.get(sender);
        let next = |node: &u32| Some(self.links.get(NodeId(*node)).behind).filter(|&node| node != NONE);
        std::iter::successors(Some(head).filter(|&node| node != NONE), next).map(NodeId)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.links.bytes() + self.heads.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    #[test]
    fn the_index_is_that_of_a_search_after_any_changes() {
        let (mut index, mut senders) = (Senders::default(), vec![NodeId::NONE; 40]);
        for round in 0..3_000 {
            let draw = |word, n| rng::below([7, word, round, 0], n);
            let node = NodeId(draw(0, 40));
            let sender = if draw(1, 4) == 0 { NodeId::NONE } else { NodeId(draw(2, 12)) };
            index.set(node, sender);
            senders[node.index()] = sender;
            let sender = NodeId(draw(3, 13));
            let mut found: Vec<NodeId> = index.nodes_of(sender).collect();
            found.sort_unstable();
            let expected = (0..40).map(NodeId).filter(|node| senders[node.index()] == sender);
            assert!(found.into_iter().eq(expected), "round {round}");
        }
        assert_eq!(index.nodes_of(NodeId::NONE).count(), 0);
    }
}
