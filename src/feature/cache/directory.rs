//! [`CacheDirectory`]: which rows are in which slots, and which should be, without the rows themselves. It decides;
//! [`GpuRows`](super::GpuRows) moves rows accordingly.

use super::buckets::Homes;
use super::found::Found;
use super::order::{NextUse, Order};
use super::ranks::Ranks;
use super::table::SlotTable;
use super::window::{CHUNK_IDS, Window};

/// Counts over rounds; each row of a round counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Rows that were requested.
    pub rows: u64,
    /// Those that were in the cache.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
    /// Misses that got no slot, since the cached rows are needed sooner.
    pub bypassed: u64,
    /// Rows that were brought in before their round.
    pub restored: u64,
    /// Rows that gave their slot to another.
    pub evicted: u64,
    /// Rows that were dropped because they changed.
    pub invalidated: u64,
}

impl CacheCounts {
    /// Rows that did not have to be copied because they were in the cache from earlier on: a row that was restored was
    /// copied as one that was missed is, only sooner.
    #[must_use]
    pub fn copies_avoided(&self) -> u64 {
        self.hits.saturating_sub(self.restored)
    }
}

/// A row of a round and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Place of the row in its round.
    pub row: u32,
    /// Where it belongs.
    pub slot: u32,
}

/// Slots by row, and the order in which they are evicted.
pub struct CacheDirectory {
    table: SlotTable,
    /// The row in each slot.
    ids: Vec<u64>,
    pub(super) order: Order,
    window: Window,
    look_ahead: u32,
    ranks: Ranks,
    counts: CacheCounts,
    /// Where the rows of the current round were when it was announced.
    announced: Found,
    /// Slots that are about to be filed.
    kept: Vec<u32>,
    /// Counts changes of the slots' content and of the current round.
    changes: u64,
}

impl CacheDirectory {
    /// A directory of `slots` empty slots. It will know at most `look_ahead` rounds beyond the current one.
    ///
    /// # Panics
    /// When there are more than 2^30 slots or 2^20 rounds.
    #[must_use]
    pub fn new(slots: u32, look_ahead: u32) -> Self {
        assert!(slots <= 1 << 30 && look_ahead <= 1 << 20, "{slots} slots, {look_ahead} rounds");
        Self {
            table: SlotTable::new(slots as usize),
            ids: vec![0; slots as usize],
            order: Order::new(slots, look_ahead + 1),
            window: Window::new(),
            look_ahead,
            ranks: Ranks::new(look_ahead),
            counts: CacheCounts::default(),
            announced: Found::default(),
            kept: Vec::new(),
            changes: 0,
        }
    }

    /// Rows that fit.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // made from a u32
    pub fn slots(&self) -> u32 {
        self.ids.len() as u32
    }

    /// Whether all of these misses find an empty slot.
    #[must_use]
    pub fn has_room(&self, found: &Found) -> bool {
        found.misses.len() <= self.order.vacancies() as usize
    }

    /// How many more rounds may be announced.
    #[must_use]
    pub fn room(&self) -> usize {
        (self.look_ahead as usize + 1).saturating_sub(self.window.len())
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes()
            + self.ids.len() * size_of::<u64>()
            + self.order.bytes()
            + self.window.bytes()
            + self.announced.bytes()
            + self.kept.capacity() * size_of::<u32>()
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// The rows of the current round: the earliest one announced that is not over.
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        self.window.ids()
    }

    /// Announces the rows of the round after all those announced, each once.
    ///
    /// # Panics
    /// When there is no [`room`](Self::room).
    #[allow(clippy::cast_possible_truncation)] // fewer rounds than that
    pub fn announce(&mut self, ids: &[u64]) {
        assert!(self.room() > 0, "a round beyond the {} that are looked ahead", self.look_ahead);
        let rounds = self.window.len() as u32;
        let Self { table, order, window, announced, kept, .. } = self;
        let (ids, first) = window.push(ids);
        if rounds == 0 {
            announced.start_over();
        }
        table.find_all(first.iter().map(|&place| ids[place as usize]), |slot| {
            kept.extend(slot);
            // Of the current round all rows are its first ones, and here it is searched for them all.
            if rounds == 0 {
                announced.push(slot);
            }
        });
        order.file_all(kept.drain(..).map(|slot| (slot, NextUse::In(rounds))));
        if rounds == 0 {
            self.changes += 1;
            announced.changes = Some(self.changes);
        }
    }

    /// Finds the rows of the current round. Changes nothing that is in the cache.
    pub fn look_up(&mut self, found: &mut Found) {
        if found.changes == Some(self.changes) {
            return;
        }
        if self.announced.changes == Some(self.changes) {
            std::mem::swap(found, &mut self.announced);
            return;
        }
        found.start_over();
        self.table.find_all(self.window.ids().iter().copied(), |slot| found.push(slot));
        found.changes = Some(self.changes);
    }

    /// How many of the current round's misses [`restore`](Self::restore) has room for: empty slots, or rows that no
    /// known round needs.
    #[must_use]
    pub fn restorable(&self, found: &Found) -> usize {
        let room = self.order.vacancies() as usize + self.order.unknown() as usize;
        found.misses.len().min(room)
    }

    /// The same without the slots that were `used` last, by rows that are still read.
    #[must_use]
    pub fn restorable_beside(&self, found: &Found, used: &[u32]) -> usize {
        let used = used.iter().filter(|slot| self.order.is_unknown(**slot)).count();
        let room = self.order.vacancies() as usize + (self.order.unknown() as usize).saturating_sub(used);
        found.misses.len().min(room)
    }

    /// Gives slots to the first `rows` of those misses of the current round that `may`, before it comes, and lists them
    /// in `placed`. `found` holds afterwards where they are.
    ///
    /// # Panics
    /// When `found` is not of the current round as it is.
    pub fn restore(
        &mut self,
        found: &mut Found,
        (rows, may): (usize, impl Fn(u32) -> bool),
        placed: &mut Vec<Placed>,
    ) {
        assert_eq!(found.changes, Some(self.changes), "found before something changed");
        placed.clear();
        self.table.reserve(found.misses.len());
        let wanted: Vec<u32> = found.misses.iter().copied().filter(|&row| may(row)).take(rows).collect();
        'rows: for chunk in wanted.chunks(CHUNK_IDS) {
            let homes = self.homes(chunk);
            for (&row, homes) in chunk.iter().zip(homes) {
                let slot = match self.order.vacant() {
                    Some(slot) => slot,
                    None => match self.order.last_wanted() {
                        Some((slot, NextUse::Unknown)) => self.evict(slot),
                        _ => break 'rows,
                    },
                };
                if self.fill(slot, row, NextUse::In(0), homes) {
                    found.slots[row as usize] = slot;
                    placed.push(Placed { row, slot });
                }
            }
        }
        found.misses.retain(|&row| found.slots[row as usize] == Found::MISS);
        self.counts.restored += placed.len() as u64;
        self.changes += 1;
        found.changes = Some(self.changes);
    }

    /// Ends the current round and lists in `placed` which of its misses are kept, and where; no slot occurs twice. Of
    /// the round's rows and those that were there before, the ones needed soonest are kept; of those that no known
    /// round needs, the ones used last.
    ///
    /// # Panics
    /// When `found` is not of the current round as it is.
    pub fn turn(&mut self, found: &Found, placed: &mut Vec<Placed>) {
        assert_eq!(found.changes, Some(self.changes), "found before something changed");
        placed.clear();
        self.table.reserve(found.misses.len());
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.sort(&found.misses, |row| self.window.next_use(row as usize));
        let mut fresh = self.file_hits(found);
        'rows: for chunk in ranks.sorted().chunks(CHUNK_IDS) {
            let homes = self.homes(chunk);
            for (&row, homes) in chunk.iter().zip(homes) {
                let next = self.window.next_use(row as usize);
                // Later rows are not needed sooner.
                let Some(slot) = self.slot_for(next, fresh) else { break 'rows };
                if self.fill(slot, row, next, homes) {
                    fresh += u32::from(next == NextUse::Unknown);
                    placed.push(Placed { row, slot });
                }
            }
        }
        self.ranks = ranks;
        let (rows, misses) = (found.slots.len() as u64, found.misses.len() as u64);
        self.counts.rows += rows;
        self.counts.misses += misses;
        self.counts.hits += rows - misses;
        self.counts.bypassed += misses - placed.len() as u64;
        self.window.advance();
        self.order.advance();
        self.changes += 1;
    }

    /// Ends the current round without taking it: it was announced, and another one came. Its cached rows stay.
    pub fn pass(&mut self, found: &mut Found) {
        self.look_up(found);
        self.file_hits(found);
        self.window.advance();
        self.order.advance();
        self.changes += 1;
    }

    /// Files what was found of the current round by its use after that. Returns the number of rows for which that is
    /// not known.
    fn file_hits(&mut self, found: &Found) -> u32 {
        let (mut fresh, window) = (0, &self.window);
        let hits = found.slots.iter().enumerate().filter(|(_, slot)| **slot != Found::MISS);
        self.order.file_all(hits.map(|(place, &slot)| {
            let next = window.next_use(place);
            fresh += u32::from(next == NextUse::Unknown);
            (slot, next)
        }));
        fresh
    }

    /// The slot of `id`, whose row has changed in its source: the row there has to be written again.
    #[must_use]
    pub fn slot_of(&self, id: u64) -> Option<u32> {
        self.table.find(id, self.table.homes(id))
    }

    /// Drops the row of `id`, which has changed in its source. Whether it was there.
    pub fn invalidate(&mut self, id: u64) -> bool {
        let Some(slot) = self.slot_of(id) else { return false };
        self.table.give_up(slot);
        self.order.free(slot);
        self.counts.invalidated += 1;
        self.changes += 1;
        true
    }

    /// Drops every row.
    pub fn clear(&mut self) {
        for slot in (0..self.slots()).filter(|slot| !self.order.is_free(*slot)).collect::<Vec<_>>() {
            self.invalidate(self.ids[slot as usize]);
        }
    }

    /// A slot for a row that is needed at `next`: an empty one, or that of a row that is needed later. Among rows of
    /// unknown use, the `fresh` ones that this round used have the same priority.
    fn slot_for(&mut self, next: NextUse, fresh: u32) -> Option<u32> {
        if let Some(slot) = self.order.vacant() {
            return Some(slot);
        }
        let (slot, last) = self.order.last_wanted()?;
        let older = next == NextUse::Unknown && last == NextUse::Unknown && self.order.unknown() > fresh;
        (last > next || older).then(|| self.evict(slot))
    }

    /// Takes the row out of `slot`.
    fn evict(&mut self, slot: u32) -> u32 {
        self.table.give_up(slot);
        self.order.free(slot);
        self.counts.evicted += 1;
        slot
    }

    /// The buckets of the rows at `places` of the current round, at most [`CHUNK_IDS`]; prefetches them.
    fn homes(&self, places: &[u32]) -> [Homes; CHUNK_IDS] {
        let mut homes = [[0; 2]; CHUNK_IDS];
        for (home, &place) in homes.iter_mut().zip(places) {
            *home = self.table.homes(self.window.ids()[place as usize]);
            self.table.prefetch(*home);
        }
        homes
    }

    /// Gives an empty slot to row `row` of the current round; `false` if the table has no place for it.
    fn fill(&mut self, slot: u32, row: u32, next: NextUse, homes: Homes) -> bool {
        let id = self.window.ids()[row as usize];
        let named = self.table.name(id, slot, homes);
        if named {
            self.ids[slot as usize] = id;
            self.order.file(slot, next);
        }
        named
    }
}
