//! Which blocks are being read or written, and by whom, so that no two threads work on one block.
//!
//! To read or write a block, a thread claims it first. A thread that finds it claimed waits, but only while it holds no
//! claim of its own, so there is no deadlock. A claim ends with its [`Claims`], also in a panic.

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

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// It is ours now.
    New,
    /// It already was.
    Ours,
    /// Another owner has it.
    Taken,
}

impl Busy {
    /// No claims yet, for one owner.
    pub fn claims(&self) -> Claims<'_> {
        Claims { busy: self, owner: self.owners.fetch_add(1, Ordering::Relaxed), held: Vec::new() }
    }

    /// Whether `block` is claimed.
    pub fn has(&self, block: u64) -> bool {
        self.state.lock().owner.contains_key(&block)
    }

    /// Returns when at least one of `blocks` is not claimed.
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
