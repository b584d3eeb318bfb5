//! [`Lists`]: the adjacency lists of a shard, by the number of their node in the shard. They are in pages, as ids of
//! nodes are never reused: a page in which no node has an edge, or is noted as one without, takes no memory. So where
//! nodes come and go, those that went cost a pointer per page, and a pass over all lists visits those of pages that are
//! there.
//!
//! A page is large beside the pointer to it, so that all pointers are in a CPU's cache and finding a list costs what it
//! costs in an array; and no larger, because a page stays for a single node that stays.

use super::list::AdjacencyList;

/// Lists of a page, 8 KiB.
const PAGE: usize = 256;

#[derive(Default)]
pub(super) struct Lists {
    pages: Vec<Option<Box<Page>>>,
    /// By page, how many of its lists are not empty; not in the page, whose size is one that allocators have.
    filled: Vec<u16>,
    /// Pages that are there.
    used: usize,
}

/// Aligned, so that no list lies in two cache lines.
#[repr(align(64))]
struct Page([AdjacencyList; PAGE]);

const _: () = assert!(size_of::<Page>() == PAGE * size_of::<AdjacencyList>());

impl Page {
    fn new() -> Box<Self> {
        Box::new(Self([const { AdjacencyList::Empty }; PAGE]))
    }
}

impl Lists {
    /// The list of a node; `None` stands for an empty one.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&AdjacencyList> {
        let page = self.pages.get(index / PAGE)?.as_deref()?;
        Some(&page.0[index % PAGE])
    }

    /// Changes the list of a node by `f`.
    pub fn change<R>(&mut self, index: usize, f: impl FnOnce(&mut AdjacencyList) -> R) -> R {
        let number = index / PAGE;
        if number >= self.pages.len() {
            self.grow_to(number + 1);
        }
        let (slot, filled) = (&mut self.pages[number], &mut self.filled[number]);
        self.used += usize::from(slot.is_none());
        let list = &mut slot.get_or_insert_with(Page::new).0[index % PAGE];
        let before = u16::from(!list.is_empty());
        let result = f(list);
        *filled = *filled - before + u16::from(!list.is_empty());
        if *filled == 0 {
            *slot = None;
            self.used -= 1;
        }
        result
    }

    /// Makes room for `pages` pages and an eighth more, not for twice as many: pages that went are never needed again.
    #[cold]
    fn grow_to(&mut self, pages: usize) {
        if pages > self.pages.capacity() {
            let more = pages - self.pages.len() + self.pages.len() / 8;
            self.pages.reserve_exact(more);
            self.filled.reserve_exact(more);
        }
        self.pages.resize_with(pages, || None);
        self.filled.resize(pages, 0);
    }

    /// One past the highest number of a node that ever had a list, at least.
    pub fn end(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Lists of pages that are there, which is what a pass over all of them visits.
    pub fn visited(&self) -> usize {
        self.used * PAGE
    }

    /// The numbers of the lists in each page of the first `end`, and whether the page is there.
    pub fn pages(&self, end: usize) -> impl Iterator<Item = (std::ops::Range<usize>, bool)> {
        let is_there = |number: usize| self.pages.get(number).is_some_and(Option::is_some);
        (0..end.div_ceil(PAGE))
            .map(move |number| (number * PAGE..end.min((number + 1) * PAGE), is_there(number)))
    }

    /// The lists of pages that are there, from number `first` on, ascending.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = (usize, &AdjacencyList)> {
        let pages = self.pages.iter().enumerate().skip(first / PAGE);
        let pages = pages.filter_map(|(number, page)| Some((number, page.as_deref()?)));
        let lists = pages.flat_map(|(number, page)| (number * PAGE..).zip(&page.0));
        lists.filter(move |(index, _)| *index >= first)
    }

    /// The lists of pages that are there, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &AdjacencyList> {
        self.pages.iter().flatten().flat_map(|page| &page.0)
    }

    /// The same to change: an empty list stays empty, and no other becomes so.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut AdjacencyList> {
        self.pages.iter_mut().flatten().flat_map(|page| &mut page.0)
    }

    /// Bytes held, without those of directories.
    pub fn bytes(&self) -> usize {
        self.used * size_of::<Page>()
            + self.pages.capacity() * size_of::<Option<Box<Page>>>()
            + self.filled.capacity() * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lists: &mut Lists, index: usize, is_there: bool) {
        lists.change(index, |list| {
            *list = if is_there { AdjacencyList::Idle(index as i64) } else { AdjacencyList::Empty };
        });
    }

    #[test]
    fn lists_are_as_in_an_array_and_pages_without_any_go() {
        let (mut lists, mut there) = (Lists::default(), vec![false; 3_000]);
        for round in 0..20_000_u32 {
            let draw = |word, n| crate::device::rng::below([4, word, round.into(), 0], n);
            let (index, is_there) = (draw(0, 3_000) as usize, draw(1, 3) > 0);
            set(&mut lists, index, is_there);
            there[index] = is_there;
        }
        (700..1_900).for_each(|index| {
            set(&mut lists, index, false);
            there[index] = false;
        });
        let has = |index| {
            lists
                .get(index)
                .is_some_and(|list| matches!(list, AdjacencyList::Idle(at) if *at == index as i64))
        };
        assert!(there.iter().enumerate().all(|(index, is_there)| has(index) == *is_there));
        assert_eq!((lists.end(), lists.visited()), (12 * PAGE, 8 * PAGE));
        let used = |first| {
            let used = lists.iter_from(first).filter(|(_, list)| !list.is_empty());
            used.map(|(index, _)| index).collect::<Vec<_>>()
        };
        for first in [0, 5, 255, 256, 800, 2_999, 100_000] {
            let expected = (first..3_000).filter(|&index| there[index]);
            assert!(used(first).into_iter().eq(expected), "{first}");
        }
        let pages: Vec<_> = lists.pages(600).collect();
        assert_eq!(pages, [(0..256, true), (256..512, true), (512..600, true)]);
        assert!(lists.pages(4_000).filter(|page| page.1).count() == 8);
        (0..3_000).for_each(|index| set(&mut lists, index, false));
        assert!(lists.bytes() <= 14 * 10 && lists.visited() == 0 && lists.iter().count() == 0);
    }
}
