//! Layers on a GPU, each kernel with its launcher: linear layers, attention over slots, the mixing of slots and their
//! rows, the element-wise part of recurrent cells, layer normalization, the time encoding, rows joined, spread and
//! reduced, what is done value by value, the loss and the bound of the gradients' norm, and Adam. The twins are under
//! `nn/cpu`.
//!
//! What is computed element by element has the CPU's bits; sums run in another order, and agree to rounding.
//! Sums over rows are made in two steps: partial sums by a kernel of the layer, then [`sum_pieces`].
//!
//! Launching is not verified on a GPU; the calls are tested with a simulated GPU.

mod adam;
mod attention;
mod elementwise;
mod gru;
mod joined;
mod layer_norm;
mod layout;
mod linear;
mod loss;
mod mixing;
mod pieces;
mod reduce;
mod slot_rows;
mod time_encoding;

pub use adam::{Moved, adam, adam_bounded_all, squares_of_all};
pub use attention::{Attention, AttentionBackward, AttentionForward, AttentionSizes};
pub use elementwise::{
    accumulate, accumulate_from, add, gelu, gelu_backward, multiply, relu, rnn, rnn_backward, scale,
    scale_in_place,
};
pub use gru::{gru_backward, gru_forward};
pub use joined::{Part, Users, add_rows, drop_out, join_rows, relu_backward, spread_rows};
pub use layer_norm::{layer_norm_backward, layer_norm_forward, layer_norm_parameters};
pub use layout::{Layout, Matrix, MatrixMut, Put};
pub use linear::{LinearSizes, linear_bias, linear_forward, linear_input, linear_pieces, linear_weights};
pub use loss::{bce, bce_backward, bound_norm, squares_pieces};
pub use mixing::{MIXING_MAX, SlotMixer, mixing_backward, mixing_forward};
pub use pieces::{pieces_of, sum_pieces};
pub use reduce::{SlotGroups, clear_empty, clear_rows, put_rows, reduce_slots, spread_slots};
pub use slot_rows::{SlotTimes, slot_rows};
pub use time_encoding::{time_backward, time_encode};

use super::context::Cuda;
use super::launch::Grid;
use super::module::Entry;
use super::stream::Stream;

pub(super) const ADAM: &[Entry] = adam::ENTRIES;
pub(super) const ATTENTION: &[Entry] = attention::ENTRIES;
pub(super) const ELEMENTWISE: &[Entry] = elementwise::ENTRIES;
pub(super) const GRU: &[Entry] = gru::ENTRIES;
pub(super) const JOINED: &[Entry] = joined::ENTRIES;
pub(super) const LAYER_NORM: &[Entry] = layer_norm::ENTRIES;
pub(super) const LINEAR: &[Entry] = linear::ENTRIES;
pub(super) const LOSS: &[Entry] = loss::ENTRIES;
pub(super) const MIXING: &[Entry] = mixing::ENTRIES;
pub(super) const PIECES: &[Entry] = pieces::ENTRIES;
pub(super) const REDUCE: &[Entry] = reduce::ENTRIES;
pub(super) const SLOT_ROWS: &[Entry] = slot_rows::ENTRIES;
pub(super) const TIME_ENCODING: &[Entry] = time_encoding::ENTRIES;

/// Where a layer is computed: a GPU, and the stream to which all its buffers belong.
pub type Place<'a> = (&'a Cuda, &'a Stream);

/// Blocks of a multiprocessor that fill a GPU with threads that wait for memory.
const BLOCKS: u32 = 8;

/// A grid for `threads` threads in blocks of `block`.
fn grid(cuda: &Cuda, threads: u64, block: u32) -> Grid {
    Grid::of(threads, block, cuda.gpu().multiprocessors.saturating_mul(BLOCKS))
}
