//! What kernels take by value or find in memory, as this side writes it: a twin in Rust of each struct of `kernels/`,
//! field by field, and of each number that both sides have to know.
//!
//! [`all`] and [`CONSTANTS`] list all of it as data. `tests/it/kernels_host/twins.rs` has a C++ compiler print the
//! same of the kernels' own headers, and compares: no size and no offset is kept by hand. A twin has no padding, so
//! every byte of it is a field that both sides name.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

/// Where something is in memory that a GPU reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Address(pub(super) u64);

impl Address {
    /// Of nothing; only where a kernel allows it.
    pub(super) const NULL: Self = Self(0);

    /// Where value `count` behind it is.
    pub(super) fn behind<T>(self, count: usize) -> Self {
        Self(self.0 + (count * size_of::<T>()) as u64)
    }
}

/// Of what kind a field is, in one letter: `u`nsigned, signed `i`nteger, `f`loating, `p`ointer, `s`truct. An array is
/// of the kind of its elements.
pub trait Field {
    /// The letter.
    const KIND: char;
}

macro_rules! kinds {
    ($($kind:literal: $($field:ty),*;)*) => { $($(impl Field for $field { const KIND: char = $kind; })*)* };
}

kinds! {
    'u': u16, u32, u64;
    'i': i64;
    'f': f32;
    'p': Address;
    's': NodeBlocks, RowPart, Mask, Product;
}

impl<T: Field, const N: usize> Field for [T; N] {
    const KIND: char = T::KIND;
}

/// A twin, as data.
#[derive(Clone, Copy, Debug)]
pub struct Twin {
    /// Its name, on both sides.
    pub name: &'static str,
    /// Its size.
    pub bytes: usize,
    /// Name, offset in bytes, size in bytes and kind of each field.
    pub fields: &'static [(&'static str, usize, usize, char)],
}

macro_rules! twins {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
            #[repr(C)]
            pub struct $name { $($(#[$field_doc])* pub $field: $kind),* }
        )*

        /// All of this file.
        pub(super) const TWINS: &[Twin] = &[$(Twin {
            name: stringify!($name),
            bytes: size_of::<$name>(),
            fields: &[$((
                stringify!($field),
                offset_of!($name, $field),
                size_of::<$kind>(),
                <$kind as Field>::KIND,
            )),*],
        }),*];
    };
}

mod layers;

pub use layers::{
    AdamStep, AdamTensor, AttentionShape, Mask, Mixing, PieceProduct, PieceSum, PieceTerm, Product, RowPart,
    RowParts, RowUsers, SlotColumns, SlotSource,
};

/// All twins.
pub fn all() -> impl Iterator<Item = &'static Twin> {
    [TWINS, layers::TWINS].into_iter().flatten()
}

twins! {
    /// The blocks of one node: consecutive ones in the table of blocks.
    NodeBlocks {
        /// Index of the oldest.
        first: u32,
        /// How many there are.
        count: u32,
    }

    /// Description of a block of consecutive edges of a node. See `kernels/graph.cuh` for each field's meaning.
    Block {
        /// Time of the first entry.
        start: i64,
        /// No larger than any edge id.
        base_edge: u64,
        /// Where the entries are.
        page: u32,
        /// Number of entries in the node's earlier blocks.
        before: u32,
        /// Distance from `base_edge` of an id that none so far exceeds, of wide blocks in 256; all ones: too far.
        reach: u32,
        /// Entry of the page at which the entries begin.
        place: u16,
        /// Number of entries less 1; the highest bit: edge ids ascend with the entries; the next: entries are wide.
        form: u16,
    }

    /// One edge of a block, or the high bits of one in a wide block.
    Entry {
        /// The other node; the highest bit: the edge comes from there.
        neighbor: u32,
        /// Distance from the block's start.
        time: u32,
        /// Distance from the block's base.
        edge: u32,
    }

    /// An entry on its way to its place.
    PlacedEntry {
        /// As in [`Entry`].
        neighbor: u32,
        /// As in [`Entry`].
        time: u32,
        /// As in [`Entry`].
        edge: u32,
        /// Page and place in the page as one number.
        slot: u32,
    }

    /// A node's blocks on their way.
    PlacedNode {
        /// Which node.
        node: u32,
        /// Its content in the table from there on.
        blocks: NodeBlocks,
        /// 0.
        unused: u32,
    }

    /// The tables of a graph.
    Graph {
        /// [`NodeBlocks`] by node.
        nodes: Address,
        /// How many.
        node_count: u64,
        /// [`Block`]s.
        blocks: Address,
        /// Addresses of pages of [`Entry`].
        pages: Address,
    }

    /// What of the graph may be seen: no edge with id `bound` or above, none before `since`, and none more than `age`
    /// before the time asked about.
    View {
        /// Ids end here.
        bound: u64,
        /// Times begin here.
        since: i64,
        /// Less than 0: any.
        age: i64,
    }

    /// What is enqueued on every seed, and the first words of the random numbers' key.
    Request {
        /// First word.
        seed: u64,
        /// Second word.
        batch: u64,
        /// How far back; less than 0: any time.
        window: i64,
        /// Number of the layer.
        layer: u32,
        /// Slots per seed.
        fanout: u32,
    }

    /// The pairs asked about.
    Seeds {
        /// `u32` each.
        nodes: Address,
        /// `i64` each.
        times: Address,
        /// One `u32`: how many there are.
        count: Address,
    }

    /// Where samples go, in the layout of `sampler::MessageFlowGraph`.
    Slots {
        /// `u32` per seed.
        counts: Address,
        /// `u32` per slot.
        neighbors: Address,
        /// `u64` per slot.
        edges: Address,
        /// `i64` per slot.
        times: Address,
        /// `f32` per slot.
        deltas: Address,
    }

    /// The slots of a layer, of which the next one's seeds are made.
    Pairs {
        /// `u32` per slot.
        neighbors: Address,
        /// `i64` per slot.
        times: Address,
        /// One `u32`: seeds of the layer.
        seeds: Address,
        /// Slots per seed.
        fanout: u32,
        /// 0.
        unused: u32,
    }
}

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub(super) const $name: u32 = $value;)*

        /// Numbers that both sides have to know, by their name there.
        pub const CONSTANTS: &[(&str, u32)] = &[$((stringify!($name), $name)),*];
    };
}

constants! {
    /// Rows that a lane has under way together.
    ROWS_AT_ONCE = 4;
    /// Bytes that memory hands over at a time.
    LINE = 128;
    /// Slots that a block of `distinct.cu` numbers together.
    TILE_SLOTS = 1024;
    /// Threads of such a block.
    TILE_THREADS = 256;
    /// Slots per seed of attention, at most.
    SLOTS_MAX = 32;
    /// Rows that are summed before sums are.
    PIECE_ROWS = 32;
    /// The same of the gradients of a linear layer.
    PRODUCT_PIECE_ROWS = 256;
    /// Rows and columns of a tile of a product.
    PRODUCT_TILE = 32;
    /// Tables that a row may be made of.
    ROW_PARTS = 4;
    /// Users of a row that are too many for one warp.
    USERS_MANY = 64;
    /// Values that are squared and summed together.
    SQUARES_PIECE = 4096;
    /// Weights that a block moves together.
    ADAM_PIECE = 1024;
    /// Columns of seeds whose gradients of `mixing.cu` are summed before sums are.
    MIXING_PIECE = 512;
    /// Threads of a block of its forward.
    MIXING_THREADS = 128;
    /// Threads of a block of its backward.
    MIXING_TILE = 64;
}
