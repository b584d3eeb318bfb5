//! Floor 3: a small tape over block operations. [`Parameters`] are the named weights, a [`Tape`] records one
//! step's operations on [`Tensor`]s and walks them backward into [`Gradients`], and [`Adam`] applies these.
//!
//! Every operation is coarse (a linear layer, a GRU cell, a whole attention layer), has its forward beside its
//! backward, and dispatches on the device in one place: `ops` records, saves and dispatches, `cpu` computes on
//! slices, `cuda` asks a GPU for kernels. Shapes are two-dimensional, row-major f32. A shape that does not fit is a
//! bug of the caller and panics with both shapes; outside data reaches this floor only through
//! [`Parameters::from_bytes`], which returns errors. What fails on a GPU is kept by its device until it is asked for
//! ([`Device::check`](crate::device::Device::check)).
//!
//! Results are bit-identical at any number of threads: work is cut at fixed places and sums are added in a
//! fixed order. Buffers come from a [`TapePool`] and go back to it, so that a steady step allocates nothing big.
//!
//! Knows nothing of graphs, events or models.

mod adam;
mod cpu;
pub(crate) mod cuda;
pub mod init;
mod list;
mod ops;
mod parameters;
mod pool;
mod storage;
mod table;
mod tape;
mod tensor;
#[cfg(test)]
mod tests;

pub use adam::{Adam, AdamOptions, Bound};
pub use cpu::elementwise::log_scale;
pub use cpu::gather::InverseIndex;
pub use cpu::number::{Number, add_rounded, pack, unpack};
pub use list::{List, Places};
pub use ops::attention::TemporalAttention;
pub use ops::joined::Columns;
pub use ops::recurrent::{GruParams, RnnParams};
pub use ops::segment::{Groups, Reduce};
pub use ops::slot_attention::SlotAttention;
pub use ops::slot_mixing::SlotMixing;
pub use ops::slot_rows::SlotRows;
pub use ops::time::TimeEncoder;
pub use parameters::{Gradients, ParamId, Parameters};
pub use pool::TapePool;
pub use storage::StorageError;
pub use table::RowLists;
pub use tape::{Mode, Tape, Var};
pub use tensor::{Fetched, Tensor};
