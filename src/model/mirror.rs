//! [`NodeMirror`]: a copy of the rows of memory and pending messages, on the GPU that trains.
//!
//! The CPU's tables are authoritative: they are saved, copied and served. A step on a GPU needs the same rows and has
//! just computed those that changed, so the mirror is updated on the GPU, and only node ids are copied there. Whatever
//! else changes a row, a deletion or a state that was loaded, makes it stale; stale rows are copied before the next
//! step. A mirror that a part of the GPU's budget does not hold is not kept: then each step's rows are copied.
//!
//! A copy of a state has a mirror of its own, which is empty.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Mailbox, NodeMemory, Touched};
use crate::device::Device;
use crate::event::NodeId;
use crate::nn::{RowLists, Tensor};

/// Of the GPU's budget, one part of so many is the mirror's.
const BUDGET_PARTS: usize = 4;
/// Rows that a mirror has room for at least.
const ROWS_MIN: usize = 1024;

/// The tables on a GPU, if any.
#[derive(Default)]
pub struct NodeMirror(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    tables: Option<Tables>,
    /// Nodes whose rows changed on the CPU alone.
    stale: Vec<NodeId>,
    /// So many rows did not fit; only fewer are tried.
    too_many: Option<usize>,
}

impl Inner {
    fn current(&self, device: &Device) -> Option<&Tables> {
        self.tables.as_ref().filter(|tables| tables.memory.device() == device && self.stale.is_empty())
    }
}

/// `[nodes, memory_dim]` each.
struct Tables {
    memory: Tensor,
    messages: Tensor,
    /// No other tables have it.
    number: u64,
}

impl Tables {
    /// The rows with room for `rows`, where the GPU has that.
    fn grown(memory: &Tensor, messages: &Tensor, rows: usize) -> Option<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Some(Self { memory: memory.with_rows(rows)?, messages: messages.with_rows(rows)?, number })
    }

    fn bytes(rows: usize, width: usize) -> usize {
        2 * rows.saturating_mul(width).saturating_mul(size_of::<f32>())
    }

    fn rows(&self) -> usize {
        self.memory.rows()
    }
}

/// Rows for as many nodes as are known, and some more.
fn room_for(nodes: usize) -> usize {
    nodes.max(ROWS_MIN).next_power_of_two()
}

/// Whether a GPU's budget has room for so many rows.
fn fits(device: &Device, rows: usize, width: usize) -> bool {
    match device {
        Device::Cpu => false,
        Device::Cuda(work) => Tables::bytes(rows, width) <= work.cuda().memory().budget / BUDGET_PARTS,
    }
}

impl NodeMirror {
    /// Forgets all of it.
    pub fn clear(&self) {
        *self.0.lock() = Inner::default();
    }

    /// Nodes that it has rows for.
    pub fn rows(&self) -> usize {
        self.0.lock().tables.as_ref().map_or(0, Tables::rows)
    }

    /// Notes that rows of `nodes` changed on the CPU.
    pub fn is_stale(&self, nodes: impl IntoIterator<Item = NodeId>) {
        let mut inner = self.0.lock();
        if inner.tables.is_some() {
            inner.stale.extend(nodes);
        }
    }

    /// Brings the mirror on `device` up to date with the CPU's tables. Of messages only the rows of the other end are
    /// mirrored, so they must have no more. May wait.
    pub fn bring_up_to_date(&self, device: &Device, memory: &NodeMemory, mailbox: &Mailbox) {
        let width = memory.dimension();
        let nodes = memory.len().max(mailbox.len());
        let (mut inner, rows) = (self.0.lock(), room_for(nodes));
        if width == 0 || mailbox.dimension() != width || !fits(device, rows, width) {
            *inner = Inner::default();
            return;
        }
        let short = |tables: &Tables| tables.memory.device() != device || tables.rows() < nodes;
        if inner.tables.as_ref().is_some_and(short) {
            inner.tables = None;
        }
        let Inner { tables, stale, too_many } = &mut *inner;
        let Some(tables) = tables else {
            stale.clear();
            if too_many.is_some_and(|most| rows >= most) {
                return;
            }
            let all = (0..nodes).map(|node| NodeId(u32::try_from(node).unwrap_or(u32::MAX)));
            let read = Read { memory, mailbox };
            let [memory, messages] = read.rows(device, &all.collect::<Vec<_>>());
            *tables = Tables::grown(&memory, &messages, rows);
            *too_many = if tables.is_none() { Some(rows) } else { None };
            return;
        };
        if stale.is_empty() {
            return;
        }
        stale.sort_unstable();
        stale.dedup();
        let [memory, messages] = Read { memory, mailbox }.rows(device, stale);
        let index = ids(stale.drain(..));
        tables.memory.put_rows_at(&index, &memory);
        tables.messages.put_rows_at(&index, &messages);
    }

    /// Which tables hold the rows on `device`, as long as they are the same ones; none if that has none, or stale ones.
    #[must_use]
    pub fn number(&self, device: &Device) -> Option<u64> {
        Some(self.0.lock().current(device)?.number)
    }

    /// Memory rows of `nodes`, on `device`; none if that has no mirror, or one that is stale.
    #[must_use]
    pub fn memory(&self, device: &Device, nodes: impl Iterator<Item = NodeId>) -> Option<Tensor> {
        let inner = self.0.lock();
        Some(inner.current(device)?.memory.rows_at(&ids(nodes)))
    }

    /// Messages that wait for `nodes`: the rows of the other ends, on `device`; none likewise.
    #[must_use]
    pub fn messages(&self, device: &Device, nodes: impl Iterator<Item = NodeId>) -> Option<Tensor> {
        let inner = self.0.lock();
        Some(inner.current(device)?.messages.rows_at(&ids(nodes)))
    }

    /// Takes over what a step wrote, given by places in `touched`: the rows `fresh` of those that are `written`, and
    /// then a message for each from its `others`. Without `fresh` rows on the mirror's device they are stale.
    pub fn follow(&self, touched: &Touched, written: &[u32], fresh: Option<&Tensor>, others: &[NodeId]) {
        let mut inner = self.0.lock();
        let Inner { tables, stale, too_many } = &mut *inner;
        let Some(tables) = tables else { return };
        let nodes = touched.nodes();
        let Some(fresh) = fresh.filter(|fresh| fresh.device() == tables.memory.device()) else {
            return stale.extend_from_slice(nodes);
        };
        let known = nodes.iter().chain(others).map(|node| node.index() + 1).max().unwrap_or(0);
        if known > tables.rows() {
            let rows = room_for(known);
            let fits = fits(fresh.device(), rows, fresh.cols());
            let Some(grown) = fits.then(|| Tables::grown(&tables.memory, &tables.messages, rows)).flatten()
            else {
                *too_many = Some(rows);
                inner.tables = None;
                return;
            };
            *tables = grown;
        }
        let written_nodes = ids(written.iter().map(|&place| nodes[place as usize]));
        let lists =
            vec![written.to_vec(), written_nodes, ids(others.iter().copied()), ids(nodes.iter().copied())];
        let lists = RowLists::new(fresh.device(), lists);
        tables.memory.put_rows_listed(&lists, (1, Some(0)), fresh);
        tables.messages.put_rows_listed(&lists, (3, Some(2)), &tables.memory);
    }
}

fn ids(nodes: impl Iterator<Item = NodeId>) -> Vec<u32> {
    nodes.map(|node| node.0).collect()
}

/// The CPU's tables.
struct Read<'a> {
    memory: &'a NodeMemory,
    mailbox: &'a Mailbox,
}

impl Read<'_> {
    /// Rows of memory and of messages of `nodes`, copied to `device`.
    fn rows(&self, device: &Device, nodes: &[NodeId]) -> [Tensor; 2] {
        let width = self.memory.dimension();
        let [mut memory, mut messages] = [(); 2].map(|()| Tensor::zeros(&Device::Cpu, nodes.len(), width));
        for (i, &node) in nodes.iter().enumerate() {
            self.memory.row_into(node, memory.row_mut(i));
            if let Some(message) = self.mailbox.pending(node) {
                messages.row_mut(i).copy_from_slice(message.values);
            }
        }
        [memory, messages].map(|rows| rows.to(device))
    }
}

impl Clone for NodeMirror {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for NodeMirror {
    /// A mirror holds nothing that the tables do not hold.
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for NodeMirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeMirror").field("rows", &self.rows()).finish()
    }
}
