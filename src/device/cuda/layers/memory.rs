//! [`CardMemory`]: memory and mailbox of a TGN on a card, as `kernels/memory.cu`, which has the formulas and the order
//! of a step.
//!
//! Which nodes have a mail, and which event of a batch is a node's last, follows from the events alone: the host knows,
//! and says so. What depends on values is decided on the card: a row that is not finite is refused there.

#![allow(unsafe_code)]

use super::{Place, grid};
use crate::device::cuda::context::Cuda;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Grid, Launch, hold, narrow, product, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::module::Entry;
use crate::device::cuda::twins::{Address, Events, MailFeatures, NodeTable};

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // table, nodes, count, features, w, b, time, origin, messages, own.
    Entry {
        name: "message_rows",
        parameters: takes![
            NodeTable,
            Address,
            u64,
            MailFeatures,
            Address,
            Address,
            u32,
            i64,
            Address,
            Address
        ],
    },
    // table, nodes, from, count, updated, updated_rows, fresh.
    Entry { name: "fresh_rows", parameters: takes![NodeTable, Address, Address, u64, Address, u32, Address] },
    // table, nodes, rows, count, fresh, fresh_count, refused.
    Entry {
        name: "remember_rows",
        parameters: takes![NodeTable, Address, Address, u64, Address, u32, Address],
    },
    // table, events, nodes, last, count.
    Entry { name: "post_messages", parameters: takes![NodeTable, Events, Address, Address, u64] },
];

/// When a node was last updated that never was.
const NEVER: i64 = i64::MIN;
const THREADS: u32 = 256;
const LANES: u64 = 32;

/// Memory rows and mails of nodes, with their times.
pub struct CardMemory {
    memory: CudaBuffer<f32>,
    mails: CudaBuffer<f32>,
    updated: CudaBuffer<i64>,
    mail_times: CudaBuffer<i64>,
    width: usize,
}

/// What messages are made of, beside memory and mails.
#[derive(Clone, Copy)]
pub struct Messages<'a> {
    /// Which nodes' messages.
    pub nodes: &'a CudaBuffer<u32>,
    /// Features of edges, how wide they are, and the row of each message; not asked for without columns.
    pub features: (&'a CudaBuffer<f32>, usize, &'a CudaBuffer<u32>),
    /// Frequencies and phases of the encoding.
    pub encoding: (&'a CudaBuffer<f32>, &'a CudaBuffer<f32>),
    /// When nodes count as updated that never were.
    pub origin: i64,
}

/// The events of a batch, on the card.
#[derive(Clone, Copy)]
pub struct BatchEnds<'a> {
    /// Source nodes.
    pub src: &'a CudaBuffer<u32>,
    /// Destination nodes.
    pub dst: &'a CudaBuffer<u32>,
    /// Times.
    pub times: &'a CudaBuffer<i64>,
}

impl CardMemory {
    /// Nothing is known of `nodes` nodes with rows of `width` values. Waits.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn new((cuda, stream): Place<'_>, nodes: usize, width: usize) -> Result<Self, CudaError> {
        let operation = "memory of nodes";
        let values = product(operation, "memory", &[nodes, width])?;
        Ok(Self {
            memory: CudaBuffer::zeros(cuda, stream, values, operation)?,
            mails: CudaBuffer::zeros(cuda, stream, values, operation)?,
            updated: CudaBuffer::from_slice(cuda, stream, &vec![NEVER; nodes], operation)?,
            mail_times: CudaBuffer::zeros(cuda, stream, nodes, operation)?,
            width,
        })
    }

    /// How many nodes have room.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.updated.len()
    }

    /// Values of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Makes room for `nodes` nodes. Waits.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; then all is as before.
    pub fn grow(&mut self, (cuda, stream): Place<'_>, nodes: usize) -> Result<(), CudaError> {
        let operation = "more memory of nodes";
        if nodes <= self.nodes() {
            return Ok(());
        }
        let values = product(operation, "memory", &[nodes, self.width])?;
        let mut updated = CudaBuffer::from_slice(cuda, stream, &vec![NEVER; nodes], operation)?;
        updated.copy_front_from(&self.updated, self.nodes())?;
        let (memory, mails) =
            (self.memory.grown(cuda, values, operation)?, self.mails.grown(cuda, values, operation)?);
        let mail_times = self.mail_times.grown(cuda, nodes, operation)?;
        *self = Self { memory, mails, updated, mail_times, width: self.width };
        Ok(())
    }

    /// Memory rows and update times of all nodes, the least number where there was no update. Waits.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<(Vec<f32>, Vec<i64>), CudaError> {
        Ok((self.memory.copy_to_host()?, self.updated.copy_to_host()?))
    }

    /// Mails of all nodes and the times of their events; those mean something where one waits. Waits.
    ///
    /// # Errors
    /// The driver's.
    pub fn mails(&self) -> Result<(Vec<f32>, Vec<i64>), CudaError> {
        Ok((self.mails.copy_to_host()?, self.mail_times.copy_to_host()?))
    }

    /// `out`, `[nodes, 2 width + features + time]`, becomes the messages of nodes for which one waits, and `own`,
    /// `[nodes, width]`, their memory rows. Does not wait.
    ///
    /// # Errors
    /// Sizes that do not fit, a buffer of another stream, or the driver's.
    pub fn messages(
        &self,
        (cuda, stream): Place<'_>,
        from: Messages<'_>,
        out: &mut CudaBuffer<f32>,
        own: &mut CudaBuffer<f32>,
    ) -> Result<(), CudaError> {
        let operation = "messages of nodes";
        let (count, (w, b), (table, features, rows)) = (from.nodes.len(), from.encoding, from.features);
        let columns = 2 * self.width + features + w.len();
        hold(
            operation,
            &[
                ("phases", b.len(), w.len()),
                ("rows of features", rows.len(), if features == 0 { 0 } else { count }),
                ("messages", out.len(), product(operation, "messages", &[count, columns])?),
                ("rows", own.len(), product(operation, "rows", &[count, self.width])?),
            ],
        )?;
        if count == 0 {
            return Ok(());
        }
        let mut launch = Launch::new(cuda, stream, operation);
        let node_table = self.reading(&mut launch, operation)?;
        let mail_features = MailFeatures {
            table: launch.reading(table),
            rows: launch.reading(rows),
            count: narrow(operation, "rows of features", table.len().checked_div(features).unwrap_or(0))?,
            columns: narrow(operation, "features", features)?,
        };
        let launch = launch.number(node_table).reads(from.nodes).number(count as u64).number(mail_features);
        let launch = launch.reads(w).reads(b).number(narrow(operation, "the encoding", w.len())?);
        let launch = launch.number(from.origin).writes(out).writes(own);
        // SAFETY: the kernel takes no node and no row that is not there, and writes two rows for each of `nodes`.
        unsafe { launch.run("message_rows", rows_grid(cuda, count), || format!("{count} messages")) }
    }

    /// `fresh`, `[nodes, width]`: of each of `nodes` row `from` of `updated`, or its memory where `from` names no row.
    /// Does not wait.
    ///
    /// # Errors
    /// As for [`messages`](Self::messages).
    pub fn fresh(
        &self,
        (cuda, stream): Place<'_>,
        (nodes, from): (&CudaBuffer<u32>, &CudaBuffer<u32>),
        updated: &CudaBuffer<f32>,
        fresh: &mut CudaBuffer<f32>,
    ) -> Result<(), CudaError> {
        let operation = "fresh memory of nodes";
        let count = nodes.len();
        let values = product(operation, "rows", &[count, self.width])?;
        hold(operation, &[("rows that are new", from.len(), count), ("rows", fresh.len(), values)])?;
        if count == 0 {
            return Ok(());
        }
        let rows = narrow(operation, "rows", updated.len().checked_div(self.width).unwrap_or(0))?;
        let mut launch = Launch::new(cuda, stream, operation);
        let table = self.reading(&mut launch, operation)?;
        let launch = launch.number(table).reads(nodes).reads(from).number(count as u64);
        let launch = launch.reads(updated).number(rows).writes(fresh);
        // SAFETY: the kernel takes no node and no row that is not there, and writes a row for each of `nodes`.
        unsafe { launch.run("fresh_rows", rows_grid(cuda, count), || format!("{count} nodes")) }
    }

    /// The memory of each of `nodes`, distinct, becomes row `rows` of `fresh`, where that names one, at the time of its
    /// mail; `refused`, one number, counts the rows that are not finite and are not written. Does not wait.
    ///
    /// # Errors
    /// As for [`messages`](Self::messages).
    pub fn remember(
        &mut self,
        (cuda, stream): Place<'_>,
        (nodes, rows): (&CudaBuffer<u32>, &CudaBuffer<u32>),
        fresh: &CudaBuffer<f32>,
        refused: &mut CudaBuffer<u32>,
    ) -> Result<(), CudaError> {
        let operation = "remembering memory of nodes";
        let count = nodes.len();
        hold(operation, &[("rows", rows.len(), count), ("the count of refusals", refused.len(), 1)])?;
        if count == 0 {
            return Ok(());
        }
        let all = narrow(operation, "rows", fresh.len().checked_div(self.width).unwrap_or(0))?;
        let mut launch = Launch::new(cuda, stream, operation);
        let table = self.writing(&mut launch, operation)?;
        let launch = launch.number(table).reads(nodes).reads(rows).number(count as u64);
        let launch = launch.reads(fresh).number(all).writes(refused);
        // SAFETY: the kernel takes no node and no row that is not there, and writes rows of the table alone.
        unsafe { launch.run("remember_rows", rows_grid(cuda, count), || format!("{count} nodes")) }
    }

    /// The mail of each of `nodes`, distinct, becomes the memory row of the other end of event `last` of the batch,
    /// with its time. Does not wait.
    ///
    /// # Errors
    /// As for [`messages`](Self::messages).
    pub fn post(
        &mut self,
        (cuda, stream): Place<'_>,
        (nodes, last): (&CudaBuffer<u32>, &CudaBuffer<u32>),
        batch: BatchEnds<'_>,
    ) -> Result<(), CudaError> {
        let operation = "leaving messages for nodes";
        let (count, events) = (nodes.len(), batch.times.len());
        hold(
            operation,
            &[
                ("last events", last.len(), count),
                ("sources", batch.src.len(), events),
                ("destinations", batch.dst.len(), events),
            ],
        )?;
        if count == 0 {
            return Ok(());
        }
        let mut launch = Launch::new(cuda, stream, operation);
        let table = self.writing(&mut launch, operation)?;
        let ends = Events {
            src: launch.reading(batch.src),
            dst: launch.reading(batch.dst),
            times: launch.reading(batch.times),
            count: narrow(operation, "events", events)?,
            unused: 0,
        };
        let launch = launch.number(table).number(ends).reads(nodes).reads(last).number(count as u64);
        // SAFETY: the kernel takes no node and no event that is not there, and writes rows of the table alone.
        unsafe { launch.run("post_messages", rows_grid(cuda, count), || format!("{count} nodes")) }
    }

    fn table(&self, operation: &'static str, addresses: [Address; 4]) -> Result<NodeTable, CudaError> {
        let [memory, mails, updated, mail_times] = addresses;
        let width = narrow(operation, "the width", self.width)?;
        let nodes = self.nodes() as u64;
        Ok(NodeTable { memory, mails, updated, mail_times, nodes, width, unused: 0 })
    }

    fn reading<'a>(
        &'a self,
        launch: &mut Launch<'a>,
        operation: &'static str,
    ) -> Result<NodeTable, CudaError> {
        let rows = [&self.memory, &self.mails].map(|rows| launch.reading(rows));
        let times = [&self.updated, &self.mail_times].map(|times| launch.reading(times));
        self.table(operation, [rows[0], rows[1], times[0], times[1]])
    }

    fn writing<'a>(
        &'a mut self,
        launch: &mut Launch<'a>,
        operation: &'static str,
    ) -> Result<NodeTable, CudaError> {
        let table = self.table(operation, [Address::NULL; 4])?;
        Ok(NodeTable {
            memory: launch.writing(&mut self.memory),
            mails: launch.writing(&mut self.mails),
            updated: launch.writing(&mut self.updated),
            mail_times: launch.writing(&mut self.mail_times),
            ..table
        })
    }
}

/// A warp to a row.
fn rows_grid(cuda: &Cuda, rows: usize) -> Grid {
    grid(cuda, LANES * rows as u64, THREADS)
}
