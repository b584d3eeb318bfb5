//! [`Order`]: the slots of a cache by when their rows are needed next. A step costs the same however many slots there
//! are.
//!
//! For each known round there is a stack of the slots that it needs, which is discarded as a whole when the round is
//! over. A slot that is filed elsewhere meanwhile stays in it; only the last filing of a slot counts, and outdated
//! entries are skipped. Slots whose rows no known round needs are in a list, newest first, and empty ones in another.
//! Knows nothing of rows.
//!
//! Slots are filed in any order, so what takes long is waiting for memory: [`Order::file_all`] has what several filings
//! read on its way before the first of them needs it.

use crate::device::prefetch;

/// No slot.
const NONE: u32 = u32::MAX;

/// When a row is needed next: a number of rounds from the current one, or in no known round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextUse {
    /// In so many rounds.
    In(u32),
    /// In no round that is known.
    Unknown,
}

/// Slots that are linked to one another.
#[derive(Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
    len: u32,
}

/// Where a slot is filed.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Filing {
    /// A list, or a stack: the last that it was filed under.
    under: u32,
    /// Its newer and older neighbor in a list.
    newer: u32,
    older: u32,
}

/// Slots by next use.
pub(super) struct Order {
    slots: u32,
    /// Of each slot up to the last that was ever filed. Those behind are empty, and count as older than those in the
    /// list of empty ones.
    filings: Vec<Filing>,
    lists: [List; 2],
    /// Slots that a known round needs, and some that were filed elsewhere since.
    stacks: Vec<Vec<u32>>,
    /// Which stack is that of the current round; the others follow, cyclically.
    current: u32,
    /// No round further from the current one has a slot.
    farthest: u32,
}

/// Slots that are filed together.
const CHUNK_SLOTS: usize = 32;

const FREE: u32 = 0;
const UNKNOWN: u32 = 1;
const STACKS: u32 = 2;

impl Order {
    /// So many slots that hold nothing, for next uses in fewer than `rounds` rounds.
    pub fn new(slots: u32, rounds: u32) -> Self {
        Self {
            slots,
            filings: Vec::new(),
            lists: [List { newest: NONE, oldest: NONE, len: 0 }; 2],
            stacks: vec![Vec::new(); rounds as usize],
            current: 0,
            farthest: 0,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let stacked: usize = self.stacks.iter().map(Vec::capacity).sum();
        self.filings.capacity() * size_of::<Filing>() + stacked * size_of::<u32>()
    }

    /// Goes on to the next round. No slot may be filed under the current one any more.
    pub fn advance(&mut self) {
        self.stacks[self.current as usize].clear();
        self.current = (self.current + 1) % self.rounds();
        self.farthest = self.farthest.saturating_sub(1);
    }

    /// Files a slot under its next use, as the newest.
    pub fn file(&mut self, slot: u32, next: NextUse) {
        match next {
            NextUse::Unknown => self.put(slot, UNKNOWN),
            NextUse::In(rounds) => {
                let stack = self.stack(rounds);
                self.leave(slot);
                self.filings[slot as usize].under = STACKS + stack;
                self.stacks[stack as usize].push(slot);
                self.farthest = self.farthest.max(rounds);
            }
        }
    }

    /// Files many slots, in this order.
    pub fn file_all(&mut self, slots: impl Iterator<Item = (u32, NextUse)>) {
        let mut slots = slots.peekable();
        while slots.peek().is_some() {
            let mut chunk = [(NONE, NextUse::Unknown); CHUNK_SLOTS];
            let mut len = 0;
            for (place, next) in chunk.iter_mut().zip(&mut slots) {
                *place = next;
                len += 1;
                self.filings.get(place.0 as usize).into_iter().for_each(prefetch);
            }
            for (slot, _) in &chunk[..len] {
                let Some(Filing { newer, older, .. }) = self.filings.get(*slot as usize) else { continue };
                [newer, older]
                    .iter()
                    .filter_map(|other| self.filings.get(**other as usize))
                    .for_each(prefetch);
            }
            chunk[..len].iter().for_each(|&(slot, next)| self.file(slot, next));
        }
    }

    /// Marks a slot as empty.
    pub fn free(&mut self, slot: u32) {
        self.put(slot, FREE);
    }

    /// Whether a slot is empty.
    pub fn is_free(&self, slot: u32) -> bool {
        self.filings.get(slot as usize).is_none_or(|filing| filing.under == FREE)
    }

    /// An empty slot.
    pub fn vacant(&self) -> Option<u32> {
        let slot = self.lists[FREE as usize].newest;
        if slot == NONE { Some(self.touched()).filter(|slot| *slot < self.slots) } else { Some(slot) }
    }

    /// The slot that is needed last, and when; of the same round the one that was filed last, of those of unknown use
    /// the one that was filed first.
    pub fn last_wanted(&mut self) -> Option<(u32, NextUse)> {
        let unknown = self.lists[UNKNOWN as usize];
        if unknown.len > 0 {
            return Some((unknown.oldest, NextUse::Unknown));
        }
        loop {
            let stack = self.stack(self.farthest);
            let slots = &mut self.stacks[stack as usize];
            while let Some(&slot) = slots.last() {
                if self.filings[slot as usize].under == STACKS + stack {
                    return Some((slot, NextUse::In(self.farthest)));
                }
                slots.pop();
            }
            self.farthest = self.farthest.checked_sub(1)?;
        }
    }

    /// Whether no known round needs the row in a slot.
    pub fn is_unknown(&self, slot: u32) -> bool {
        self.filings.get(slot as usize).is_some_and(|filing| filing.under == UNKNOWN)
    }

    /// Slots whose rows no known round needs.
    pub fn unknown(&self) -> u32 {
        self.lists[UNKNOWN as usize].len
    }

    /// Empty slots.
    pub fn vacancies(&self) -> u32 {
        self.lists[FREE as usize].len + (self.slots - self.touched())
    }

    /// Slots up to the last that was ever filed.
    #[allow(clippy::cast_possible_truncation)] // no more than there are
    fn touched(&self) -> u32 {
        self.filings.len() as u32
    }

    #[allow(clippy::cast_possible_truncation)] // made from a u32
    fn rounds(&self) -> u32 {
        self.stacks.len() as u32
    }

    /// The stack of what is needed in so many rounds.
    fn stack(&self, rounds: u32) -> u32 {
        debug_assert!(rounds < self.rounds(), "a round that cannot be known");
        (self.current + rounds) % self.rounds()
    }

    fn put(&mut self, slot: u32, list: u32) {
        self.leave(slot);
        self.link(slot, list);
    }

    fn link(&mut self, slot: u32, list: u32) {
        let ends = &mut self.lists[list as usize];
        let second = std::mem::replace(&mut ends.newest, slot);
        ends.len += 1;
        match second {
            NONE => ends.oldest = slot,
            second => self.filings[second as usize].newer = slot,
        }
        self.filings[slot as usize] = Filing { under: list, newer: NONE, older: second };
    }

    /// Puts the empty slots up to this one into their list.
    fn touch(&mut self, slot: u32) {
        debug_assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        while self.touched() <= slot {
            let (own, ends) = (self.touched(), &mut self.lists[FREE as usize]);
            let before = std::mem::replace(&mut ends.oldest, own);
            ends.len += 1;
            match before {
                NONE => ends.newest = own,
                before => self.filings[before as usize].older = own,
            }
            self.filings.push(Filing { under: FREE, newer: before, older: NONE });
        }
    }

    /// Takes a slot out of its list, if it is in one.
    fn leave(&mut self, slot: u32) {
        self.touch(slot);
        let Filing { under, newer, older } = self.filings[slot as usize];
        if under >= STACKS {
            return;
        }
        let ends = &mut self.lists[under as usize];
        ends.len -= 1;
        match newer {
            NONE => ends.newest = older,
            newer => self.filings[newer as usize].older = older,
        }
        match older {
            NONE => ends.oldest = newer,
            older => self.filings[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_last_goes_first() {
        use NextUse::{In, Unknown};
        let mut order = Order::new(6, 4);
        assert_eq!((order.vacancies(), order.vacant(), order.last_wanted()), (6, Some(0), None));
        for (slot, next) in [(0, In(1)), (1, In(3)), (2, Unknown), (3, In(3)), (4, Unknown), (5, In(2))] {
            order.file(slot, next);
        }
        assert_eq!((order.vacancies(), order.unknown(), order.vacant()), (0, 2, None));
        let mut left = Vec::new();
        while let Some(last) = order.last_wanted() {
            left.push(last);
            order.free(last.0);
        }
        assert_eq!(left, [(2, Unknown), (4, Unknown), (3, In(3)), (1, In(3)), (5, In(2)), (0, In(1))]);
        assert_eq!(order.vacancies(), 6);
    }

    #[test]
    fn a_round_that_passes_brings_the_others_nearer_and_what_was_filed_before_is_void() {
        let mut order = Order::new(3, 4);
        order.file(0, NextUse::In(1));
        order.file(1, NextUse::In(3));
        order.advance();
        assert_eq!(order.last_wanted(), Some((1, NextUse::In(2))));
        order.file(1, NextUse::Unknown);
        order.file(0, NextUse::In(3));
        assert_eq!(order.last_wanted(), Some((1, NextUse::Unknown)));
        order.free(1);
        assert_eq!(order.last_wanted(), Some((0, NextUse::In(3))));
        order.file(0, NextUse::Unknown);
        order.file(1, NextUse::Unknown);
        order.file(0, NextUse::Unknown);
        assert_eq!(order.last_wanted(), Some((1, NextUse::Unknown)), "the other was filed again");
        assert_eq!((order.unknown(), order.vacancies()), (2, 1));
    }
}
