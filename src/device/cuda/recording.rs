//! [`Recording`]: what a stream remembers while what is enqueued on it becomes a graph, which is launched later: memory
//! that is not to be given back before, and whether something was refused meanwhile. `capture` has the rules.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

use super::budget::Reservation;

/// Memory of the GPU that nobody wants any more.
pub(super) struct Freed {
    pub address: u64,
    pub in_order: bool,
    /// Its part of the budget, which ends with it.
    pub share: Option<Reservation>,
}

/// What waits for a recording's end.
#[derive(Default)]
pub(super) struct Kept {
    /// Freed meanwhile: to be given back behind the graph, which may use it.
    pub freed: Vec<Freed>,
    /// Memory of the host that the graph reads or writes.
    pub host: Vec<Arc<dyn Any + Send + Sync>>,
    /// Whether something was asked for that cannot be recorded.
    pub refused: bool,
}

/// Whether a stream is recorded, and what is kept until that is over.
#[derive(Default)]
pub(super) struct Recording(Mutex<Option<Kept>>);

impl Recording {
    /// Begins one; `false` if one is under way.
    pub fn begin(&self) -> bool {
        let mut kept = self.0.lock();
        let free = kept.is_none();
        kept.get_or_insert_default();
        free
    }

    /// Ends it.
    pub fn end(&self) -> Kept {
        self.0.lock().take().unwrap_or_default()
    }

    pub fn is_under_way(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Whether it is under way, and is notified of what cannot be recorded.
    pub fn refuses(&self) -> bool {
        self.0.lock().as_mut().map(|kept| kept.refused = true).is_some()
    }

    /// Whether it is under way and has refused something.
    pub fn has_refused(&self) -> bool {
        self.0.lock().as_ref().is_some_and(|kept| kept.refused)
    }

    /// Has memory freed by `free`: at the end of the recording, or now if none is under way. None begins meanwhile: it
    /// would record the call.
    pub fn free(&self, freed: Freed, free: impl FnOnce(Freed)) {
        let mut kept = self.0.lock();
        match kept.as_mut() {
            Some(kept) => kept.freed.push(freed),
            None => free(freed),
        }
    }

    /// Keeps memory of the host until the end, if one is under way.
    pub fn keep(&self, memory: &Arc<dyn Any + Send + Sync>) {
        if let Some(kept) = self.0.lock().as_mut()
            && !kept.host.iter().any(|other| Arc::ptr_eq(other, memory))
        {
            kept.host.push(memory.clone());
        }
    }
}
