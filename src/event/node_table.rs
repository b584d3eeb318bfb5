//! [`NodeTable`]: a value per node, in pages. Ids of nodes are never reused, so tables by id grow with every node
//! that ever was; a page in which every node has the empty value takes no memory, so where nodes come and go, those
//! that went cost a pointer per page.
//!
//! A copy of a table shares its pages until one of both changes a value, and copies only the page of that. So a
//! checkpoint can be written from a copy while the table goes on. Every change asks whether its page is shared. That
//! takes a load, as triomphe's `Arc` has no weak references; that of the standard library takes an atomic exchange,
//! which on x86 waits for all writes before it.

use triomphe::Arc;

use super::NodeId;

/// Nodes of a page. Larger pages stay longer where a few nodes of each stay.
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
    /// Nodes of a page, all of which have to be empty for it to take no memory.
    pub const PAGE: usize = PAGE;

    /// A table in which every node has the value `empty`.
    #[must_use]
    pub fn new(empty: T) -> Self {
        Self { pages: Vec::new(), len: 0, empty }
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
            // Room for an eighth more, not for twice as many: pages that went are never needed again.
            if number >= self.pages.capacity() {
                self.pages.reserve_exact(number + 1 - self.pages.len() + self.pages.len() / 8);
            }
            self.pages.resize_with(number + 1, || None);
        }
        let empty = self.empty;
        let page =
            self.pages[number].get_or_insert_with(|| Arc::new(Page { values: [empty; PAGE], used: 0 }));
        let page = Arc::make_mut(page);
        let old = std::mem::replace(&mut page.values[node.index() % PAGE], value);
        page.used += usize::from(old == empty);
    }

    /// Replaces every value that is not empty by what `f` makes of it, which is not empty either.
    pub fn update(&mut self, mut f: impl FnMut(NodeId, T) -> T) {
        for (number, page) in self.pages.iter_mut().enumerate() {
            let Some(page) = page else { continue };
            for (node, value) in nodes_from(number).zip(&mut Arc::make_mut(page).values) {
                if *value != self.empty {
                    *value = f(node, *value);
                }
            }
        }
    }

    /// The nodes with a value that is not empty, ascending. Visits pages that are there, no others.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, T)> {
        let pages = self.pages.iter().enumerate().filter_map(|(number, page)| Some((number, page.as_ref()?)));
        let values = pages.flat_map(|(number, page)| nodes_from(number).zip(page.values.iter().copied()));
        values.filter(|(_, value)| *value != self.empty)
    }

    /// The values of each page of the first [`len`](Self::len) nodes, in order; `None` where all are empty.
    pub fn pages(&self) -> impl Iterator<Item = Option<&[T; PAGE]>> {
        let page = |number: usize| self.pages.get(number)?.as_deref().map(|page| &page.values);
        (0..self.len.div_ceil(PAGE)).map(page)
    }

    /// Whether a node of page `number` may have a value.
    #[inline]
    #[must_use]
    pub fn has_page(&self, number: usize) -> bool {
        self.pages.get(number).is_some_and(Option::is_some)
    }

    /// Counts nodes below `len` as such that had a value.
    pub fn extend_to(&mut self, len: usize) {
        self.len = self.len.max(len);
    }

    /// Whether every node has the same value in both.
    #[must_use]
    pub fn has_values_of(&self, other: &Self) -> bool {
        self.empty == other.empty && self.iter().eq(other.iter())
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.iter().flatten().count() * size_of::<Page<T>>()
            + self.pages.capacity() * size_of::<Option<Arc<Page<T>>>>()
    }
}

/// The nodes of page `number` and those behind it.
#[allow(clippy::cast_possible_truncation, reason = "ids of nodes have 32 bits")]
fn nodes_from(number: usize) -> impl Iterator<Item = NodeId> {
    ((number * PAGE) as u32..=u32::MAX).map(NodeId)
}

/// Tables with the same values are equal, whatever pages they hold.
impl<T: Copy + PartialEq> PartialEq for NodeTable<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.has_values_of(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the first nodes.
    fn values<T: Copy + PartialEq>(table: &NodeTable<T>) -> Vec<T> {
        (0..table.len() as u32).map(|node| table.get(NodeId(node))).collect()
    }

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut table = NodeTable::new(0_u32);
        (0..5_000).for_each(|node| table.set(NodeId(node), node + 1));
        let (copy, before) = (table.clone(), values(&table));
        (0..5_000).step_by(3).for_each(|node| table.set(NodeId(node), if node % 2 == 0 { 0 } else { 9 }));
        table.update(|node, value| value + node.0);
        assert!(values(&copy) == before && values(&table) != before);
        assert!(copy != table && copy == copy.clone());
    }

    #[test]
    fn a_table_is_as_a_vector_and_gives_back_what_is_empty() {
        let (mut table, mut vector) = (NodeTable::new(7_u64), vec![7_u64; 5_000]);
        let mut state = 1_u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..40_000 {
            let (node, value) = (draw(5_000), draw(9));
            table.set(NodeId(node as u32), value);
            vector[node as usize] = value;
        }
        (600..1_700).for_each(|node| {
            table.set(NodeId(node), 7);
            vector[node as usize] = 7;
        });
        table.set(NodeId(4_999), 1);
        vector[4_999] = 1;
        assert!(values(&table) == vector && table.len() == 5_000);
        let used = (0..).map(NodeId).zip(vector.iter().copied()).filter(|(_, value)| *value != 7);
        assert!(table.iter().eq(used));
        let pages: Vec<bool> = table.pages().map(|page| page.is_some()).collect();
        assert_eq!(pages, (0..20).map(|page| !(3..6).contains(&page)).collect::<Vec<_>>());
        assert!((0..30).all(|page| table.has_page(page) == pages.get(page).is_some_and(|there| *there)));
        table.update(|node, value| value + 10 + u64::from(node.0));
        for (node, value) in vector.iter_mut().enumerate().filter(|(_, value)| **value != 7) {
            *value += 10 + node as u64;
        }
        assert!(values(&table) == vector);
        assert_eq!((table.get(NodeId(5_000)), table.get(NodeId::NONE)), (7, 7));
        (0..5_000).for_each(|node| table.set(NodeId(node), 7));
        assert!(table.bytes() < 1_000 && table.len() == 5_000 && table.iter().count() == 0);
        (0..3_000_000).for_each(|node| {
            table.set(NodeId(node), 1);
            table.set(NodeId(node.wrapping_sub(2_000)), 7);
        });
        assert!(table.bytes() < 130_000, "{}", table.bytes());
    }
}
