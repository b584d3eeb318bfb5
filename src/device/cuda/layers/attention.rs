//! Temporal attention over the slots of seeds, as `kernels/attention.cu`, which has the formulas: the fused pass
//! between the matrix products.
//!
//! Limits: 1, 2 or 4 heads; 32 slots; node row, edge row and encoding together 512 columns with 1 or 2 heads, and 256
//! with 4. What does not fit is refused, and is the CPU's.
//!
//! Numbers of rows are the GPU's to check: a slot whose row is not there is empty.

use super::{Floats, Rows};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, product, to_u32};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::twins::{Address, AttentionShape, Mask, SLOTS_MAX, SlotColumns, SlotSource};

/// Heads and columns of a lane, of each kernel: by heads, the fewest columns first.
const KERNELS: [(u32, u32); 10] =
    [(1, 4), (1, 8), (1, 12), (1, 16), (2, 4), (2, 8), (2, 12), (2, 16), (4, 4), (4, 8)];

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

    /// What kernels get, and which one it is.
    fn choose(&self, operation: &'static str) -> Result<(AttentionShape, usize), CudaError> {
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
        let suits = |(heads, columns): &(u32, u32)| {
            *heads == shape.heads && LANES * columns >= shape.padded && shape.slots <= SLOTS_MAX
        };
        match KERNELS.iter().position(suits) {
            Some(kernel) => Ok((shape, kernel)),
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
    /// How much.
    pub sizes: AttentionSizes,
    /// Row of u of each seed; row i for seed i if not given.
    pub queries: Option<&'a Rows>,
    /// Row of `nodes` of each slot; all ones: empty.
    pub slots: &'a Rows,
    /// Row of `edges` of each slot; row i for slot i if not given.
    pub edge_slots: Option<&'a Rows>,
    /// Node rows, and how many.
    pub nodes: (&'a Floats, usize),
    /// Edge rows, and how many.
    pub edges: (&'a Floats, usize),
    /// Time differences by slot.
    pub deltas: &'a Floats,
    /// Frequencies and phases of the encoding.
    pub encoding: (&'a Floats, &'a Floats),
    /// Dropout of weights.
    pub mask: Mask,
    /// What is asked: `[query_rows, heads, padded]`, and how many rows.
    pub u: (&'a Floats, usize),
}

impl<'a> Attention<'a> {
    /// Values of y, u by seed and their gradients, and of the weights.
    fn block_and_weights(&self, operation: &'static str) -> Result<[usize; 2], CudaError> {
        let AttentionSizes { seeds, slots, heads, .. } = self.sizes;
        let block = product(operation, "y", &[seeds, heads, self.sizes.padded()])?;
        Ok([block, product(operation, "weights", &[seeds, heads, slots])?])
    }

    /// Values of u.
    fn values_of_u(&self, operation: &'static str) -> Result<usize, CudaError> {
        product(operation, "u", &[self.u.1, self.sizes.heads, self.sizes.padded()])
    }

    /// Whether what is read through the source has the sizes.
    fn check(&self, operation: &'static str) -> Result<(), CudaError> {
        let AttentionSizes { seeds, slots, node, edge, time, .. } = self.sizes;
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

kernels! {
    /// Attends: `y` is `[seeds, heads, padded]`, and `weights` `[seeds, heads, slots]`.
    pub fn attention_forward = attention_forward_1_4 | attention_forward_1_8 | attention_forward_1_12
        | attention_forward_1_16 | attention_forward_2_4 | attention_forward_2_8 | attention_forward_2_12
        | attention_forward_2_16 | attention_forward_4_4 | attention_forward_4_8(
        attention: &Attention<'_>, (y, weights): (&mut Floats, &mut Floats),
    ) {
        let operation = "attention forward";
        let (sizes, (shape, kernel)) = (attention.sizes, attention.sizes.choose(operation)?);
        let [block, of_slots] = attention.block_and_weights(operation)?;
        pass value(AttentionShape, shape), built(SlotSource, |launch| attention.source(&mut launch, operation)?),
            value(Mask, attention.mask), read(attention.u.0, attention.values_of_u(operation)?, "u"),
            write(y, block, "y"), write(weights, of_slots, "weights");
        then attention.check(operation)?;
        choose kernel;
        grid LANES as usize * sizes.seeds, THREADS;
        text "{sizes:?}";
        safe "Everything that is read has the sizes, as has what is written. The kernel takes no number of a row that is
              not there, and its lanes hold all columns.";
    }

    /// Gradients, from `y` and `weights` as the forward left them and `dy`, the gradient of `y`: `du`, `[seeds, heads,
    /// padded]`, that of u by seed, and `dx`, `[seeds, slots, columns that are wanted]`, those of the slots' rows: the
    /// node's, then the encoding's, as far as they are `wanted`.
    pub fn attention_backward = attention_backward_1_4 | attention_backward_1_8 | attention_backward_1_12
        | attention_backward_1_16 | attention_backward_2_4 | attention_backward_2_8 | attention_backward_2_12
        | attention_backward_2_16 | attention_backward_4_4 | attention_backward_4_8(
        attention: &Attention<'_>, (y, weights, dy): (&Floats, &Floats, &Floats), wanted: (bool, bool),
        (du, dx): (&mut Floats, &mut Floats),
    ) {
        let operation = "attention backward";
        let (sizes, (shape, kernel)) = (attention.sizes, attention.sizes.choose(operation)?);
        let [block, of_slots] = attention.block_and_weights(operation)?;
        let (node, time) = (if wanted.0 { shape.node } else { 0 }, if wanted.1 { shape.time } else { 0 });
        let columns = SlotColumns { node, time };
        let rows = product(operation, "gradients of slots", &[sizes.seeds, sizes.slots, (node + time) as usize])?;
        pass value(AttentionShape, shape), built(SlotSource, |launch| attention.source(&mut launch, operation)?),
            value(Mask, attention.mask), value(SlotColumns, columns),
            read(attention.u.0, attention.values_of_u(operation)?, "u"), read(y, block, "y"),
            read(weights, of_slots, "weights"), read(dy, block, "the gradient of y"),
            write(du, block, "the gradient of u"), write(dx, rows, "gradients of slots");
        then attention.check(operation)?;
        choose kernel;
        grid LANES as usize * sizes.seeds, THREADS;
        text "{sizes:?}";
        safe "As for [`attention_forward`].";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_with_the_fewest_columns_is_chosen_and_what_none_does_is_refused() {
        let choose = |heads, slots, width| {
            let sizes = AttentionSizes { seeds: 5, slots, heads, node: width, edge: 0, time: 0 };
            let chosen = sizes.choose("attention");
            chosen.map(|(shape, kernel)| (shape.padded, ENTRIES[0].names[kernel]))
        };
        assert_eq!(choose(2, 10, 372).unwrap(), (384, "attention_forward_2_12"));
        assert_eq!(choose(1, 32, 1).unwrap(), (16, "attention_forward_1_4"));
        assert_eq!(choose(4, 32, 256).unwrap(), (256, "attention_forward_4_8"));
        assert_eq!(choose(2, 32, 512).unwrap(), (512, "attention_forward_2_16"));
        for (kernel, (heads, columns)) in KERNELS.iter().enumerate() {
            let names = ENTRIES.iter().map(|entry| entry.names[kernel]).collect::<Vec<_>>();
            let expected = ["forward", "backward"].map(|way| format!("attention_{way}_{heads}_{columns}"));
            assert_eq!(names, expected);
        }
        for (heads, slots, width) in [(3, 10, 100), (4, 10, 257), (2, 33, 100), (1, 1, 513), (0, 1, 1)] {
            let error = choose(heads, slots, width).unwrap_err().to_string();
            assert!(error.contains(&format!("{heads} heads, {slots} slots and {width} columns")), "{error}");
        }
    }
}
