//! [`Upload`]: what a step reads of a prepared batch, on the card: which rows stand where, time differences, rows of
//! edges. All of it follows from the batch and from which messages wait.

use hashbrown::HashMap;

use crate::device::cuda::layers::{Place, Users};
use crate::device::cuda::{CudaBuffer, CudaError};
use crate::event::NodeId;
use crate::model::Mailbox;
use crate::train::PreparedBatch;

const UPLOAD: &str = "uploading a batch";

/// Stands for a row that there is not.
const NO_ROW: u32 = u32::MAX;

/// A list of rows of a table, each of which is computed with once.
pub(super) struct Distinct {
    /// The rows, in order of first appearance.
    pub rows: CudaBuffer<u32>,
    /// Which of them stands at each place of the list.
    pub places: CudaBuffer<u32>,
    /// Who reads each row of the table: places of `rows`.
    pub of_table: Users,
    /// Who reads each of `rows`: places of the list.
    pub of_rows: Users,
}

impl Distinct {
    fn new(place: Place<'_>, list: &[u32], table_rows: usize) -> Result<Self, CudaError> {
        let (mut number_of, mut rows) = (vec![NO_ROW; table_rows], Vec::new());
        let number = |&row: &u32| {
            let number = &mut number_of[row as usize];
            if *number == NO_ROW {
                // Places are counted in 32 bits.
                *number = rows.len() as u32;
                rows.push(row);
            }
            *number
        };
        let places: Vec<u32> = list.iter().map(number).collect();
        Ok(Self {
            of_table: Users::new(place, &rows, table_rows)?,
            of_rows: Users::new(place, &places, rows.len())?,
            rows: upload(place, &rows)?,
            places: upload(place, &places)?,
        })
    }

    /// How many rows are different.
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

/// A batch on the card.
pub(super) struct Upload {
    /// Seeds, slots of each, and pairs that are scored, half of them positives.
    pub seeds: usize,
    pub slots_per_seed: usize,
    pub pairs: usize,
    /// Ids of the distinct nodes.
    pub nodes: CudaBuffer<u32>,
    /// Their places among those for which a message waits.
    pub fresh_from: CudaBuffer<u32>,
    /// Ids of those, and their places among the nodes.
    pub pending: CudaBuffer<u32>,
    pub pending_places: CudaBuffer<u32>,
    /// The row of each message's edge.
    pub mail_rows: CudaBuffer<u32>,
    /// Rows of edges, how many, and which is in each slot.
    pub edges: CudaBuffer<f32>,
    pub edge_rows: usize,
    pub edge_slots: Option<CudaBuffer<u32>>,
    /// The node of each seed.
    pub own: Distinct,
    /// The seeds of the pairs' sources and destinations.
    pub ends: [Distinct; 2],
    /// The node in each slot, and who reads each node.
    pub slots: CudaBuffer<u32>,
    pub slot_users: Users,
    pub deltas: CudaBuffer<f32>,
    /// The nodes of the events, their places among the nodes where a message waits, and their last events.
    pub touched: CudaBuffer<u32>,
    pub touched_places: CudaBuffer<u32>,
    pub last: CudaBuffer<u32>,
    /// The events.
    pub src: CudaBuffer<u32>,
    pub dst: CudaBuffer<u32>,
    pub times: CudaBuffer<i64>,
}

impl Upload {
    /// Of `batch`, where the messages of `mailbox` wait. Waits.
    ///
    /// # Errors
    /// The card's.
    pub fn new(place: Place<'_>, batch: &PreparedBatch, mailbox: &Mailbox) -> Result<Self, CudaError> {
        let nodes = batch.neighborhood.nodes().nodes();
        let hop = batch.neighborhood.hop(1, &batch.rows);
        let (seeds, events) = (hop.own.len(), batch.positives());
        let pending: Vec<u32> =
            (0..).zip(nodes).filter(|(_, node)| mailbox.is_pending(**node)).map(|(at, _)| at).collect();
        let mut from = vec![NO_ROW; nodes.len()];
        for (number, &at) in (0..).zip(&pending) {
            from[at as usize] = number;
        }
        let waiting: Vec<NodeId> = pending.iter().map(|&at| nodes[at as usize]).collect();
        let (touched, of_nodes) = (batch.touched.nodes(), batch.neighborhood.nodes());
        let waits = |&node: &NodeId| if mailbox.is_pending(node) { of_nodes.slot(node) } else { None };
        let touched_places: Vec<u32> = touched.iter().map(|node| waits(node).unwrap_or(NO_ROW)).collect();
        let times: Vec<i64> = events.times.iter().map(|time| time.0).collect();
        let edges = batch.rows.edge_rows();
        let pairs = &batch.pairs;
        Ok(Self {
            seeds,
            slots_per_seed: hop.neighbors.len().checked_div(seeds).unwrap_or(0),
            pairs: pairs.src.len(),
            nodes: ids(place, nodes)?,
            fresh_from: upload(place, &from)?,
            mail_rows: upload(place, &mail_rows(batch, mailbox, &waiting))?,
            pending: ids(place, &waiting)?,
            pending_places: upload(place, &pending)?,
            edge_rows: edges.as_ref().map_or(0, |rows| rows.rows()),
            edges: upload(place, edges.as_ref().map_or(&[], |rows| rows.data()))?,
            edge_slots: edges.is_some().then(|| upload(place, &hop.edges)).transpose()?,
            own: Distinct::new(place, &hop.own, nodes.len())?,
            ends: [Distinct::new(place, &pairs.src, seeds)?, Distinct::new(place, &pairs.dst, seeds)?],
            slot_users: Users::new(place, &hop.neighbors, nodes.len())?,
            slots: upload(place, &hop.neighbors)?,
            deltas: upload(place, &hop.deltas)?,
            touched: ids(place, touched)?,
            touched_places: upload(place, &touched_places)?,
            last: upload(place, batch.touched.last_events())?,
            src: ids(place, events.src)?,
            dst: ids(place, events.dst)?,
            times: upload(place, &times)?,
        })
    }
}

/// The row of the edge of each message that waits for `waiting`. An edge without one is older than what is kept, and
/// counts as zeros.
fn mail_rows(batch: &PreparedBatch, mailbox: &Mailbox, waiting: &[NodeId]) -> Vec<u32> {
    let numbers: HashMap<u64, u32> = batch.rows.edges().iter().copied().zip(0..).collect();
    let edge_of = |&node: &NodeId| mailbox.pending_event(node).map(|(edge, _)| edge.0);
    let row = |edge| numbers.get(&edge).copied();
    waiting.iter().map(|node| edge_of(node).and_then(row).unwrap_or(NO_ROW)).collect()
}

fn ids(place: Place<'_>, nodes: &[NodeId]) -> Result<CudaBuffer<u32>, CudaError> {
    upload(place, &nodes.iter().map(|node| node.0).collect::<Vec<u32>>())
}

fn upload<T: bytemuck::Pod>((cuda, stream): Place<'_>, values: &[T]) -> Result<CudaBuffer<T>, CudaError> {
    CudaBuffer::from_slice(cuda, stream, values, UPLOAD)
}
