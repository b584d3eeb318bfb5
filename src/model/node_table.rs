//! [`NodeTable`]: a value per node, in pages. Ids of nodes are never reused, so tables by id grow with every node
//! that ever was; a page in which every node has the empty value takes no memory, so where nodes come and go, those
//! that went cost a pointer per page.
//!
//! A copy of a table shares its pages until one of both changes a value, and copies only the page of that. So a
//! checkpoint can be written from a copy while the table goes on.

use std::sync::Arc;

use crate::event::NodeId;

/// Nodes of a page.
const PAGE: usize = 256;

/// Values by node; every node beyond the end has the empty value.
#[derive(Clone, Debug)]
pub struct NodeTable<T> {
    pages: Vec<Option<Arc<Page<T>>>>,
    /// One more than the highest node that ever had a value.
    len: usize,
    empty: T,
}

#[derive(Clone, Debug)]
struct Page<T> {
    values: [T; PAGE],
    /// Values that are not empty.
    used: usize,
}

impl<T: Copy + PartialEq> NodeTable<T> {
    /// A table in which every node has the value `empty`.
    #[must_use]
    pub fn new(empty: T) -> Self {
        Self { pages: Vec::new(), len: 0, empty }
    }

    /// The table with these values of the first nodes.
    #[must_use]
    pub fn of(empty: T, values: &[T]) -> Self {
        let mut table = Self::new(empty);
        // Ids of nodes have 32 bits.
        (0..).map(NodeId).zip(values).for_each(|(node, &value)| table.set(node, value));
        table.len = values.len();
        table
    }

    /// One more than the highest node that ever had a value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no node ever had a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of `node`.
    #[inline]
    #[must_use]
    pub fn get(&self, node: NodeId) -> T {
        match self.pages.get(node.index() / PAGE) {
            Some(Some(page)) => page.values[node.index() % PAGE],
            _ => self.empty,
        }
    }

    /// Gives `node` a value.
    pub fn set(&mut self, node: NodeId, value: T) {
        let number = node.index() / PAGE;
        if value == self.empty {
            if let Some(slot) = self.pages.get_mut(number)
                && let Some(page) = slot
            {
                let page = Arc::make_mut(page);
                let old = std::mem::replace(&mut page.values[node.index() % PAGE], value);
                page.used -= usize::from(old != self.empty);
                if page.used == 0 {
                    *slot = None;
                }
            }
            return;
        }
        self.len = self.len.max(node.index() + 1);
        if number >= self.pages.len() {
            self.pages.resize_with(number + 1, || None);
        }
        let empty = self.empty;
        let page =
            self.pages[number].get_or_insert_with(|| Arc::new(Page { values: [empty; PAGE], used: 0 }));
        let page = Arc::make_mut(page);
        let old = std::mem::replace(&mut page.values[node.index() % PAGE], value);
        page.used += usize::from(old == empty);
    }

    /// The values of the first [`len`](Self::len) nodes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        (0..self.len).map(|node| self.get(NodeId(node as u32))).collect()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.iter().flatten().count() * size_of::<Page<T>>()
            + self.pages.capacity() * size_of::<Option<Arc<Page<T>>>>()
    }
}

/// Tables with the same values are equal, whatever pages they hold.
impl<T: Copy + PartialEq> PartialEq for NodeTable<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len
            && (0..self.len).map(|node| NodeId(node as u32)).all(|node| self.get(node) == other.get(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut table = NodeTable::new(0_u32);
        (0..5_000).for_each(|node| table.set(NodeId(node), node + 1));
        let (copy, before) = (table.clone(), table.to_vec());
        (0..5_000).step_by(3).for_each(|node| table.set(NodeId(node), if node % 2 == 0 { 0 } else { 9 }));
        assert!(copy.to_vec() == before && table.to_vec() != before);
    }

    #[test]
    fn a_table_is_as_a_vector_and_gives_back_what_is_empty() {
        let (mut table, mut values) = (NodeTable::new(7_u64), vec![7_u64; 5_000]);
        for round in 0..40_000 {
            let draw = |word, n| rng::below([3, word, round, 0], n);
            let (node, value) = (draw(0, 5_000), u64::from(draw(1, 9)));
            table.set(NodeId(node), value);
            values[node as usize] = value;
        }
        table.set(NodeId(4_999), 1);
        values[4_999] = 1;
        assert!(table.to_vec() == values && table.len() == 5_000);
        assert!(NodeTable::of(7, &values) == table);
        assert_eq!((table.get(NodeId(5_000)), table.get(NodeId::NONE)), (7, 7));
        (0..5_000).for_each(|node| table.set(NodeId(node), 7));
        assert!(table.bytes() < 1_000 && table.len() == 5_000, "{}", table.bytes());
        (0..3_000_000).for_each(|node| {
            table.set(NodeId(node), 1);
            table.set(NodeId(node.wrapping_sub(2_000)), 7);
        });
        assert!(table.bytes() < 250_000, "{}", table.bytes());
    }
}
