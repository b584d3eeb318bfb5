//! Layers on a GPU, each kernel with its launcher: linear layers, attention over slots, the mixing of slots and their
//! rows, the element-wise part of recurrent cells, layer normalization, the time encoding, rows joined, added up and
//! reduced, what is done value by value, the loss and the bound of the gradients' norm, and Adam. The twins are under
//! `nn/cpu`.
//!
//! What is computed element by element has the CPU's bits, but for recurrent cells, where a compiler may fuse a product
//! and a sum; sums run in another order. Both agree to rounding.
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
pub use attention::{Attention, AttentionSizes, attention_backward, attention_forward};
pub use elementwise::{accumulate, add, gelu, gelu_backward, multiply, relu, rnn, rnn_backward, scale};
pub use gru::{gru_backward, gru_forward};
pub use joined::{
    Part, RowReaders, add_rows, drop_out, follow_list, join_rows, put_rows, relu_backward, scatter_add_rows,
};
pub use layer_norm::{layer_norm_backward, layer_norm_forward, layer_norm_parameters};
pub use layout::{Layout, Matrix, MatrixMut, Put};
pub use linear::{
    LinearSizes, WeightGradient, WeightSums, linear_forward, linear_input, linear_pieces, linear_weights,
};
pub use loss::{bce, bce_backward, bound_norm, squares_pieces};
pub use mixing::{MIXING_MAX, SlotMixer, mixing_backward, mixing_forward};
pub use pieces::{Partials, pieces_of, sum_pieces};
pub use reduce::{SlotGroups, broadcast_slots, clear_empty, clear_rows, reduce_slots};
pub use slot_rows::{SlotTimes, slot_rows};
pub use time_encoding::{time_backward, time_encode};

pub use super::launch::StreamContext;
use super::memory::CudaBuffer;

/// Values on a GPU.
pub type Floats = CudaBuffer<f32>;
/// Numbers of rows, or of what rows belong to, on a GPU.
pub type Rows = CudaBuffer<u32>;
