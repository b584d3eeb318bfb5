//! Twins of what layers take: sizes, where rows are, and how a step goes.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::{Address, Field, Twin};
use crate::device::rng;

twins! {
    /// Sizes of temporal attention.
    AttentionShape {
        /// Seeds.
        seeds: u32,
        /// Slots per seed.
        slots: u32,
        /// Heads.
        heads: u32,
        /// Columns of a node row.
        node: u32,
        /// Columns of an edge row.
        edge: u32,
        /// Columns of an encoded time.
        time: u32,
        /// All three, up to a multiple of 16.
        padded: u32,
    }

    /// Where attention reads rows.
    SlotSource {
        /// `u32` per seed, or null.
        queries: Address,
        /// `u32` per slot.
        slots: Address,
        /// `u32` per slot, or null.
        edge_slots: Address,
        /// Rows of `f32`.
        nodes: Address,
        /// Rows of `f32`.
        edges: Address,
        /// `f32` per slot.
        deltas: Address,
        /// Frequencies.
        w: Address,
        /// Phases.
        b: Address,
        /// Rows of u.
        query_rows: u32,
        /// Rows of nodes.
        node_rows: u32,
        /// Rows of edges.
        edge_rows: u32,
        /// 0.
        unused: u32,
    }

    /// Dropout of attention weights.
    Mask {
        /// State of the random numbers after the first words of their key.
        prefix: u64,
        /// Of 65,536 weights so many are dropped.
        drop: u32,
        /// What a weight that stays counts.
        keep: f32,
    }

    /// Which columns of a slot's row get a gradient.
    SlotColumns {
        /// All of the node row, or 0.
        node: u32,
        /// All of the encoding, or 0.
        time: u32,
    }

    /// Numbers that are the same for every weight of a step of Adam.
    AdamStep {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second.
        beta2: f32,
        /// `lr / (1 - beta1^t)`.
        size: f32,
        /// `sqrt(1 - beta2^t)`.
        root: f32,
        /// Added to the root.
        eps: f32,
        /// `1 - lr * decay`.
        shrink: f32,
    }

    /// A tensor among those that one launch goes through, cut into pieces.
    AdamTensor {
        /// `f32` each.
        weights: Address,
        /// `f32` each.
        first: Address,
        /// `f32` each.
        second: Address,
        /// `f32` each.
        gradient: Address,
        /// How many.
        count: u64,
        /// Pieces of the tensors before this one.
        before: u64,
    }

    /// Weights and sizes of the mixing of slots.
    Mixing {
        /// `f32` per slot.
        gamma: Address,
        /// `f32` per slot.
        beta: Address,
        /// Rows of `f32` per hidden value, each of a value per slot.
        w_a: Address,
        /// `f32` per hidden value.
        b_a: Address,
        /// Rows of `f32` per slot, each of a value per hidden value.
        w_b: Address,
        /// `f32` per slot.
        b_b: Address,
        /// Dropout behind the first layer.
        first: Mask,
        /// Behind the second.
        second: Mask,
        /// Added to the variance.
        eps: f32,
        /// Slots per seed.
        slots: u32,
        /// Values between the layers.
        hidden: u32,
        /// Values of a slot.
        columns: u32,
    }

    /// Products of matrices of one shape.
    Product {
        /// Of the result.
        rows: u32,
        /// Of the result.
        columns: u32,
        /// What is summed over.
        inner: u32,
        /// How many products.
        parts: u32,
        /// Of the columns of the result, those that the right side has.
        right_columns: u32,
        /// 0.
        unused: u32,
        /// Distance of rows on the left.
        left_stride: u64,
        /// On the right.
        right_stride: u64,
        /// Of the result.
        out_stride: u64,
        /// Distance of parts on the left.
        left_step: u64,
        /// On the right.
        right_step: u64,
        /// Of the result.
        out_step: u64,
        /// Times which a product counts.
        scale: f32,
        /// What happens with it, in bits.
        into: u32,
    }

    /// A product among those of one launch whose inner dimension is cut into pieces.
    PieceProduct {
        /// Rows of `f32`.
        left: Address,
        /// Rows of `f32`.
        right: Address,
        /// Results of the first piece.
        out: Address,
        /// Sizes and strides.
        shape: Product,
        /// Tiles of all parts and pieces of the products before this one in the table.
        before: u64,
        /// From the results of a piece to those of the next, in values.
        piece_step: u64,
        /// Where sums over the left side are behind the beginning of the results.
        left_sums: u64,
        /// Whether there are any.
        has_left_sums: u32,
        /// 0.
        unused: u32,
    }

    /// A result that is summed, and where its terms begin in the table of terms.
    PieceSum {
        /// `f32` each.
        out: Address,
        /// Columns of the results before this one in the table.
        before: u64,
        /// Its first term.
        first: u32,
        /// How many terms.
        terms: u32,
        /// Whether it is replaced.
        fresh: u32,
        /// 0.
        unused: u32,
    }

    /// Partial sums of pieces.
    PieceTerm {
        /// `f32` each.
        partials: Address,
        /// From a piece to the next, in values.
        step: u64,
        /// How many pieces.
        pieces: u64,
    }

    /// Some columns of rows that are joined.
    RowPart {
        /// Rows of `f32`.
        table: Address,
        /// `u32` per row of the result, or null.
        list: Address,
        /// Distance of the table's rows.
        stride: u64,
        /// How many it has.
        rows: u32,
        /// Values of a row.
        columns: u32,
    }

    /// All columns of rows that are joined.
    RowParts {
        /// From the left; without columns: none.
        parts: [RowPart; 4],
    }

    /// Who reads each row of a table.
    RowUsers {
        /// `u32` per row, and one behind.
        starts: Address,
        /// `u32` each.
        places: Address,
        /// How many places.
        count: u32,
        /// What places are below.
        rows: u32,
    }
}

impl Mask {
    /// The mask of dropout with probability `p` under a key: the one that the tape draws.
    #[must_use]
    pub fn new(p: f32, key: [u64; 3]) -> Self {
        let drop = (f64::from(p) * 65_536.0).round().clamp(0.0, 65_535.0);
        Self { prefix: rng::prefix(key), drop: drop as u32, keep: (65_536.0 / (65_536.0 - drop)) as f32 }
    }
}
