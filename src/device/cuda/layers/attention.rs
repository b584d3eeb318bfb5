//! Temporal attention over the slots of seeds, as `kernels/attention.cu`, which has the formulas: the fused pass
//! between the matrix products.
//!
//! Limits: 1, 2 or 4 heads; 32 slots; node row, edge row and encoding together 512 columns with 1 or 2 heads, and 256
//! with 4. What does not fit is refused, and is the CPU's.
//!
//! Numbers of rows are the GPU's to check: a slot whose row is not there is empty.

#![allow(unsafe_code)]

use super::{StreamContext, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, product, takes, to_u32};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::{Address, AttentionShape, Mask, SLOTS_MAX, SlotColumns, SlotSource};

/// shape, source, mask, u, y, weights.
const FORWARD: &[usize] = takes![AttentionShape, SlotSource, Mask, Address, Address, Address];
/// shape, source, mask, columns, u, y, weights, dy, du, dx.
const BACKWARD: &[usize] = takes![
    AttentionShape,
    SlotSource,
    Mask,
    SlotColumns,
    Address,
    Address,
    Address,
    Address,
    Address,
    Address
];

/// The kernels that there are: heads, columns of a lane, forward, backward.
macro_rules! kernels {
    ($(($heads:literal, $columns:literal)),* $(,)?) => {
        const KERNELS: &[(u32, u32, &str, &str)] = &[$((
            $heads,
            $columns,
            concat!("attention_forward_", $heads, "_", $columns),
            concat!("attention_backward_", $heads, "_", $columns),
        )),*];
        pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[$(
            Entry { name: concat!("attention_forward_", $heads, "_", $columns), parameters: FORWARD },
            Entry { name: concat!("attention_backward_", $heads, "_", $columns), parameters: BACKWARD },
        )*];
    };
}

// By heads, the fewest columns first.
kernels! {
    (1, 4), (1, 8), (1, 12), (1, 16),
    (2, 4), (2, 8), (2, 12), (2, 16),
    (4, 4), (4, 8),
}

/// Lanes of a warp, which share a seed's columns.
const LANES: u32 = 32;
/// Columns of u, y and dy are a multiple of this.
const PADDED: usize = 16;
const THREADS: u32 = 128;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Seeds.
    pub seeds: usize,
    /// Slots per seed.
    pub slots: usize,
    /// Heads.
    pub heads: usize,
    /// Columns of a node row.
    pub node: usize,
    /// Columns of an edge row.
    pub edge: usize,
    /// Columns of an encoded time, also the length of frequencies and phases.
    pub time: usize,
}

impl AttentionSizes {
    /// Columns of u, y and dy per head: those of a slot's row, up to a multiple of 16. What is beyond them is zero.
    #[must_use]
    pub fn padded(&self) -> usize {
        (self.node + self.edge + self.time).next_multiple_of(PADDED)
    }

    /// Whether a kernel does this.
    ///
    /// # Errors
    /// What is too much.
    pub fn check(&self) -> Result<(), CudaError> {
        self.choose("attention").map(drop)
    }

    /// What kernels get, and their names.
    fn choose(
        &self,
        operation: &'static str,
    ) -> Result<(AttentionShape, &'static str, &'static str), CudaError> {
        let Self { seeds, slots, heads, node, edge, time } = *self;
        let size = |what, number| to_u32(operation, what, number);
        let shape = AttentionShape {
            seeds: size("seeds", seeds)?,
            slots: size("slots", slots)?,
            heads: size("heads", heads)?,
            node: size("columns of nodes", node)?,
            edge: size("columns of edges", edge)?,
            time: size("columns of times", time)?,
            padded: size("columns", self.padded())?,
        };
        let suits = |kernel: &&(u32, u32, &str, &str)| {
            kernel.0 == shape.heads && LANES * kernel.1 >= shape.padded && shape.slots <= SLOTS_MAX
        };
        match KERNELS.iter().find(suits) {
            Some(&(_, _, forward, backward)) => Ok((shape, forward, backward)),
            None => {
                let mismatch = format!(
                    "{heads} heads, {slots} slots and {} columns: no kernel does that; compute it on the CPU",
                    node + edge + time
                );
                Err(CudaError::Arguments { operation, mismatch })
            }
        }
    }
}

/// What attention reads, in both directions.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// Where.
    pub context: StreamContext<'a>,
    /// How much.
    pub sizes: AttentionSizes,
    /// Row of u of each seed; row i for seed i if not given.
    pub queries: Option<&'a CudaBuffer<u32>>,
    /// Row of `nodes` of each slot; all ones: empty.
    pub slots: &'a CudaBuffer<u32>,
    /// Row of `edges` of each slot; row i for slot i if not given.
    pub edge_slots: Option<&'a CudaBuffer<u32>>,
    /// Node rows, and how many.
    pub nodes: (&'a CudaBuffer<f32>, usize),
    /// Edge rows, and how many.
    pub edges: (&'a CudaBuffer<f32>, usize),
    /// Time differences by slot.
    pub deltas: &'a CudaBuffer<f32>,
    /// Frequencies and phases of the encoding.
    pub encoding: (&'a CudaBuffer<f32>, &'a CudaBuffer<f32>),
    /// Dropout of weights.
    pub mask: Mask,
    /// What is asked: `[query_rows, heads, padded]`, and how many rows.
    pub u: (&'a CudaBuffer<f32>, usize),
}

/// What the forward writes.
pub struct AttentionForward<'a> {
    /// `[seeds, heads, padded]`.
    pub y: &'a mut CudaBuffer<f32>,
    /// `[seeds, heads, slots]`.
    pub weights: &'a mut CudaBuffer<f32>,
}

/// What the backward reads and writes beside [`Attention`].
pub struct AttentionBackward<'a> {
    /// As the forward left it.
    pub y: &'a CudaBuffer<f32>,
    /// As the forward left it.
    pub weights: &'a CudaBuffer<f32>,
    /// Gradient of y, `[seeds, heads, padded]`.
    pub dy: &'a CudaBuffer<f32>,
    /// Whether node rows get a gradient, and frequencies and phases.
    pub wanted: (bool, bool),
    /// Gradient of u by seed, `[seeds, heads, padded]`.
    pub du: &'a mut CudaBuffer<f32>,
    /// Gradients of the slots' rows, `[seeds, slots, columns that are wanted]`: the node's, then the encoding's.
    pub dx: &'a mut CudaBuffer<f32>,
}

impl<'a> Attention<'a> {
    /// Attends. Does not wait.
    ///
    /// # Errors
    /// Sizes that no kernel does or that do not fit, a buffer of another stream, or the driver's.
    pub fn forward(&self, out: AttentionForward<'_>) -> Result<(), CudaError> {
        let operation = "attention forward";
        let (shape, name, _) = self.sizes.choose(operation)?;
        self.check(operation)?;
        let [block, weights] = self.block_and_weights(operation)?;
        check_len(operation, &[("y", out.y.len(), block), ("weights", out.weights.len(), weights)])?;
        if self.sizes.seeds == 0 {
            return Ok(());
        }
        let (cuda, stream) = self.context;
        let mut launch = Launch::new(cuda, stream, operation);
        let source = self.source(&mut launch, operation)?;
        let launch = launch.number(shape).number(source).number(self.mask).reads(self.u.0);
        let launch = launch.writes(out.y).writes(out.weights);
        let grid = grid(cuda, u64::from(LANES) * self.sizes.seeds as u64, THREADS);
        // SAFETY: `check` saw to what is read, the lines above to what is written. The kernel takes no number of a row
        // that is not there, and its lanes hold all columns.
        unsafe { launch.run(name, grid, || format!("{:?}", self.sizes)) }
    }

    /// Gradients. Does not wait.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    pub fn backward(&self, given: AttentionBackward<'_>) -> Result<(), CudaError> {
        let operation = "attention backward";
        let (shape, _, name) = self.sizes.choose(operation)?;
        self.check(operation)?;
        let [block, weights] = self.block_and_weights(operation)?;
        let AttentionSizes { seeds, slots, node, time, .. } = self.sizes;
        let columns = SlotColumns {
            node: if given.wanted.0 { shape.node } else { 0 },
            time: if given.wanted.1 { shape.time } else { 0 },
        };
        let wanted = if given.wanted.0 { node } else { 0 } + if given.wanted.1 { time } else { 0 };
        let rows = product(operation, "gradients of slots", &[seeds, slots, wanted])?;
        check_len(
            operation,
            &[
                ("y", given.y.len(), block),
                ("weights", given.weights.len(), weights),
                ("the gradient of y", given.dy.len(), block),
                ("the gradient of u", given.du.len(), block),
                ("gradients of slots", given.dx.len(), rows),
            ],
        )?;
        if seeds == 0 {
            return Ok(());
        }
        let (cuda, stream) = self.context;
        let mut launch = Launch::new(cuda, stream, operation);
        let source = self.source(&mut launch, operation)?;
        let launch = launch.number(shape).number(source).number(self.mask).number(columns).reads(self.u.0);
        let launch = launch.reads(given.y).reads(given.weights).reads(given.dy);
        let launch = launch.writes(given.du).writes(given.dx);
        let grid = grid(cuda, u64::from(LANES) * seeds as u64, THREADS);
        // SAFETY: as for the forward.
        unsafe { launch.run(name, grid, || format!("{:?}", self.sizes)) }
    }

    /// Values of y, u by seed and their gradients, and of the weights.
    fn block_and_weights(&self, operation: &'static str) -> Result<[usize; 2], CudaError> {
        let AttentionSizes { seeds, slots, heads, .. } = self.sizes;
        let block = product(operation, "y", &[seeds, heads, self.sizes.padded()])?;
        Ok([block, product(operation, "weights", &[seeds, heads, slots])?])
    }

    /// Whether everything that is read has the sizes.
    fn check(&self, operation: &'static str) -> Result<(), CudaError> {
        let AttentionSizes { seeds, slots, heads, node, edge, time } = self.sizes;
        let all = product(operation, "slots", &[seeds, slots])?;
        check_len(
            operation,
            &[
                ("queries", self.queries.map_or(seeds, CudaBuffer::len), seeds),
                ("slots", self.slots.len(), all),
                ("edges of slots", self.edge_slots.map_or(all, CudaBuffer::len), all),
                ("node rows", self.nodes.0.len(), product(operation, "node rows", &[self.nodes.1, node])?),
                ("edge rows", self.edges.0.len(), product(operation, "edge rows", &[self.edges.1, edge])?),
                ("time differences", self.deltas.len(), all),
                ("frequencies", self.encoding.0.len(), time),
                ("phases", self.encoding.1.len(), time),
                ("u", self.u.0.len(), product(operation, "u", &[self.u.1, heads, self.sizes.padded()])?),
                ("rows of u", self.u.1, seeds.min(1)),
            ],
        )
    }

    fn source(&self, launch: &mut Launch<'a>, operation: &'static str) -> Result<SlotSource, CudaError> {
        Ok(SlotSource {
            queries: self.queries.map_or(Address::NULL, |rows| launch.reading(rows)),
            slots: launch.reading(self.slots),
            edge_slots: self.edge_slots.map_or(Address::NULL, |rows| launch.reading(rows)),
            nodes: launch.reading(self.nodes.0),
            edges: launch.reading(self.edges.0),
            deltas: launch.reading(self.deltas),
            w: launch.reading(self.encoding.0),
            b: launch.reading(self.encoding.1),
            query_rows: to_u32(operation, "rows of u", self.u.1)?,
            node_rows: to_u32(operation, "node rows", self.nodes.1)?,
            edge_rows: to_u32(operation, "edge rows", self.edges.1)?,
            unused: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_with_the_fewest_columns_is_chosen_and_what_none_does_is_refused() {
        let choose = |heads, slots, width| {
            let sizes = AttentionSizes { seeds: 5, slots, heads, node: width, edge: 0, time: 0 };
            sizes.choose("attention").map(|(shape, forward, _)| (shape.padded, forward))
        };
        assert_eq!(choose(2, 10, 372).unwrap(), (384, "attention_forward_2_12"));
        assert_eq!(choose(1, 32, 1).unwrap(), (16, "attention_forward_1_4"));
        assert_eq!(choose(4, 32, 256).unwrap(), (256, "attention_forward_4_8"));
        assert_eq!(choose(2, 32, 512).unwrap(), (512, "attention_forward_2_16"));
        for (heads, slots, width) in [(3, 10, 100), (4, 10, 257), (2, 33, 100), (1, 1, 513), (0, 1, 1)] {
            let error = choose(heads, slots, width).unwrap_err().to_string();
            assert!(error.contains(&format!("{heads} heads, {slots} slots and {width} columns")), "{error}");
        }
    }
}
