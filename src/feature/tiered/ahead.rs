//! Read-ahead: announcements, and the thread that reads for them and pins what they name.
//!
//! A pin belongs to its [`Announced`] and ends with it, whatever became of the batch, so none can leak. All
//! announcements together hold a quarter of the slots at most.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use super::fetch::UnitRequest;
use super::shared::Shared;
use super::stats::add;
use super::unit_cache::UnitCache;

/// One announcement, as its owner and the reading thread see it.
#[derive(Default)]
pub(super) struct Ticket {
    /// Locked inside the cache's lock, or alone.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Units to hold, until the thread takes them; unordered, with duplicates.
    units: Vec<u64>,
    /// Slots that are pinned.
    pinned: Vec<u32>,
    /// Units counted in `Shared::announced`.
    reserved: usize,
    /// The announcement was dropped.
    dropped: bool,
    /// Nothing more will be pinned.
    done: bool,
}

/// Rows that are held in memory, or being read, until this is dropped.
pub struct Announced {
    shared: Arc<Shared>,
    ticket: Arc<Ticket>,
}

impl std::fmt::Debug for Announced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announced").finish_non_exhaustive()
    }
}

impl Announced {
    pub(super) fn new(shared: Arc<Shared>, ticket: Arc<Ticket>) -> Self {
        Self { shared, ticket }
    }

    /// Whether all that will be held is in memory.
    #[cfg(test)]
    pub(super) fn is_ready(&self) -> bool {
        self.ticket.state.lock().done
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let state = {
            let mut state = self.ticket.state.lock();
            std::mem::replace(&mut *state, State { dropped: true, done: true, ..State::default() })
        };
        self.shared.announced.fetch_sub(state.reserved, Ordering::Relaxed);
        self.shared.forget_lists(&state);
        if !state.pinned.is_empty() {
            // A pinned slot keeps its unit, so the numbers stay valid.
            let cache = self.shared.cache.read();
            for slot in state.pinned {
                cache.slot(slot).pins.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// A ticket for the units of `indices`, as many as could ever be held.
pub(super) fn ticket(shared: &Shared, indices: &[u64]) -> Arc<Ticket> {
    let mut units: Vec<u64> = Vec::new();
    if shared.shape.dimension > 0 {
        let most = shared.most_announced() * 4;
        units.reserve_exact(indices.len().min(most));
        units.extend(indices.iter().take(most).map(|index| shared.shape.locate(*index).0));
    }
    let state = State { units, ..State::default() };
    shared.announced_bytes.fetch_add(state.bytes(), Ordering::Relaxed);
    Arc::new(Ticket { state: Mutex::new(state) })
}

impl State {
    fn bytes(&self) -> u64 {
        (self.units.capacity() * size_of::<u64>()) as u64
    }
}

impl Shared {
    /// Most units that announcements hold.
    fn most_announced(&self) -> usize {
        self.plan.segments(self.shape, 0) * self.plan.segment_slots / 4
    }

    fn forget_lists(&self, state: &State) {
        self.announced_bytes.fetch_sub(state.bytes(), Ordering::Relaxed);
    }
}

impl Ticket {
    /// Cancels the ticket before anything is read for it.
    pub fn ignore(&self, shared: &Shared) {
        let mut state = self.state.lock();
        add(&shared.counters.ignored, state.units.len());
        shared.forget_lists(&state);
        state.units = Vec::new();
        state.done = true;
    }

    /// The units to hold, in order, each once, as many as may be held now.
    fn take(&self, shared: &Shared) -> Vec<u64> {
        let mut state = self.state.lock();
        shared.forget_lists(&state);
        let mut units = std::mem::take(&mut state.units);
        units.sort_unstable();
        units.dedup();
        // Only this thread adds to the count, so what is free now stays free.
        let room = shared.most_announced().saturating_sub(shared.announced.load(Ordering::Relaxed));
        add(&shared.counters.ignored, units.len().saturating_sub(room));
        units.truncate(room);
        state.reserved = units.len();
        shared.announced.fetch_add(units.len(), Ordering::Relaxed);
        state.pinned.reserve_exact(units.len());
        units
    }

    /// Pins `slot`, under the cache's lock.
    fn pin(&self, cache: &UnitCache, slot: u32) {
        let mut state = self.state.lock();
        if !state.dropped {
            cache.slot(slot).pins.fetch_add(1, Ordering::Relaxed);
            state.pinned.push(slot);
        }
    }
}

struct ReadAhead<'a> {
    ticket: &'a Ticket,
    units: Vec<u64>,
    all_rows: u128,
    /// Units that are read but not cached, for lack of room.
    lost: usize,
}

impl UnitRequest for ReadAhead<'_> {
    fn unit(&self, i: usize) -> (u64, u128) {
        (self.units[i], self.all_rows)
    }

    fn found(&mut self, _i: usize, cache: &UnitCache, slot: u32) {
        self.ticket.pin(cache, slot);
    }

    fn unset(&mut self, _i: usize) {}

    fn read(&mut self, _i: usize, _values: &[f32]) {
        self.lost += 1;
    }

    fn cached(&mut self, _i: usize, cache: &UnitCache, slot: u32) {
        self.lost -= 1;
        self.ticket.pin(cache, slot);
    }
}

/// Serves announcements until their channel closes.
pub(super) fn run(shared: &Shared, announced: &Receiver<Arc<Ticket>>) {
    while let Ok(ticket) = announced.recv() {
        if ticket.state.lock().dropped {
            continue;
        }
        let units = ticket.take(shared);
        let count = units.len();
        let mut ahead = ReadAhead { ticket: &ticket, units, all_rows: shared.shape.all_rows(), lost: 0 };
        // A failed read was counted; the gather will try again and return the error.
        let _ = shared.fetch(count, &mut ahead);
        add(&shared.counters.ignored, ahead.lost);
        ticket.state.lock().done = true;
    }
}
