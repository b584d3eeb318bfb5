//! The block operations as methods of [`Tape`](super::Tape): each file records one kind of operation, states what
//! its backward saves, and picks the device's implementation. The arithmetic is in `super::cpu` and `super::cuda`.

pub mod attention;
mod dropout;
pub(super) mod elementwise;
mod gather;
mod gelu;
pub mod joined;
mod layer_norm;
mod linear;
mod loss;
pub mod recurrent;
pub mod segment;
mod shape;
pub mod slot_attention;
pub mod slot_mixing;
pub mod slot_rows;
pub mod time;
