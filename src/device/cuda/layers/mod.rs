//! Layers on a GPU, each kernel with its launcher: linear layers, attention over slots, the mixing of slots and their
//! rows, the element-wise part of recurrent cells, layer normalization, the time encoding, rows joined, added up and
//! reduced, what is done value by value, the loss and the bound of the gradients' norm, and Adam. The twins are under
//! `nn/cpu`.
//!
//! What is computed element by element has the CPU's bits; sums run in another order, and agree to rounding.
//! Sums over rows are made in two steps: partial sums by a kernel of the layer, then [`sum_pieces`].

pub(super) mod adam;
pub(super) mod attention;
pub(super) mod elementwise;
pub(super) mod gru;
pub(super) mod joined;
pub(super) mod layer_norm;
mod layout;
pub(super) mod linear;
pub(super) mod loss;
pub(super) mod mixing;
pub(super) mod pieces;
pub(super) mod reduce;
pub(super) mod slot_rows;
pub(super) mod time_encoding;

pub use adam::{Moved, adam, adam_bounded_all, squares_of_all};
pub use attention::{Attention, AttentionBackward, AttentionForward, AttentionSizes};
pub use elementwise::{
    accumulate, add, gelu, gelu_backward, multiply, relu, rnn, rnn_backward, scale, scale_in_place,
};
pub use gru::{gru_backward, gru_forward};
pub use joined::{InverseIndex, Part, add_rows, drop_out, join_rows, relu_backward, scatter_add_rows};
pub use layer_norm::{layer_norm_backward, layer_norm_forward, layer_norm_parameters};
pub use layout::{Layout, Matrix, MatrixMut, Put};
pub use linear::{LinearSizes, linear_bias, linear_forward, linear_input, linear_pieces, linear_weights};
pub use loss::{bce, bce_backward, bound_norm, squares_pieces};
pub use mixing::{MIXING_MAX, SlotMixer, mixing_backward, mixing_forward};
pub use pieces::{pieces_of, sum_pieces};
pub use reduce::{SlotGroups, broadcast_slots, clear_empty, clear_rows, put_rows, reduce_slots};
pub use slot_rows::{SlotTimes, slot_rows};
pub use time_encoding::{time_backward, time_encode};

use super::context::Cuda;
use super::launch::Grid;
use super::memory::CudaBuffer;
use super::stream::Stream;

/// Where a layer is computed: a GPU, and the stream to which all its buffers belong.
pub type StreamContext<'a> = (&'a Cuda, &'a Stream);

/// Values on a GPU.
pub type Floats = CudaBuffer<f32>;
/// Numbers of rows, or of what rows belong to, on a GPU.
pub type Rows = CudaBuffer<u32>;

/// Blocks of a multiprocessor that fill a GPU with threads that wait for memory.
const BLOCKS: u32 = 8;

/// A grid for `threads` threads in blocks of `block`.
pub(super) fn grid(cuda: &Cuda, threads: u64, block: u32) -> Grid {
    Grid::of(threads, block, cuda.gpu().multiprocessors.saturating_mul(BLOCKS))
}
