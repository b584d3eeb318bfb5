//! Which blocks are being read or written at this moment, and by whom: the rule that two never work on one.
//!
//! Whoever wants to read or write a block claims it first. Whoever finds it claimed waits, but only when it
//! holds no claim of its own, so nobody waits in a circle. A claim ends with its [`Claims`], also in a panic.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

/// All claimed blocks.
#[derive(Default)]
pub(super) struct Busy {
    state: Mutex<State>,
    freed: Condvar,
    owners: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Block to owner.
    owner: HashMap<u64, u64>,
    waiting: usize,
}

/// What came of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It is ours from now on.
    New,
    /// It already was.
    Ours,
    /// Somebody else has it.
    Taken,
}

impl Busy {
    /// No claims yet, for one owner.
    pub fn claims(&self) -> Claims<'_> {
        Claims { busy: self, owner: self.owners.fetch_add(1, Ordering::Relaxed), held: Vec::new() }
    }

    /// Whether anybody has `block`.
    pub fn has(&self, block: u64) -> bool {
        self.state.lock().owner.contains_key(&block)
    }

    /// Returns when nobody has at least one of `blocks`.
    pub fn wait_for_any(&self, blocks: impl Iterator<Item = u64> + Clone) {
        let mut state = self.state.lock();
        while blocks.clone().all(|block| state.owner.contains_key(&block)) {
            state.waiting += 1;
            self.freed.wait(&mut state);
            state.waiting -= 1;
        }
    }

    fn release(&self, owner: u64, blocks: impl Iterator<Item = u64>) {
        let mut state = self.state.lock();
        for block in blocks {
            if state.owner.get(&block) == Some(&owner) {
                state.owner.remove(&block);
            }
        }
        if state.waiting > 0 {
            self.freed.notify_all();
        }
    }
}

/// The blocks that one owner claimed.
pub(super) struct Claims<'a> {
    busy: &'a Busy,
    owner: u64,
    held: Vec<u64>,
}

impl Claims<'_> {
    /// Claims `block`.
    pub fn claim(&mut self, block: u64) -> Claim {
        let mut state = self.busy.state.lock();
        match state.owner.get(&block) {
            Some(owner) if *owner == self.owner => Claim::Ours,
            Some(_) => Claim::Taken,
            None => {
                state.owner.insert(block, self.owner);
                self.held.push(block);
                Claim::New
            }
        }
    }

    /// Ends the claims on `blocks`.
    pub fn release(&self, blocks: impl Iterator<Item = u64>) {
        self.busy.release(self.owner, blocks);
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        self.busy.release(self.owner, self.held.drain(..));
    }
}
