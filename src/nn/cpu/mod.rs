//! The operations on slices in main memory, backward beside forward. Loops are plain so that the compiler
//! vectorises them; the hot ones are compiled for several vector widths through `device::simd`. Work is cut
//! into pieces of fixed size, whatever the number of threads, and sums over pieces are added in order.
//!
//! Knows nothing of tapes or tensors: shapes arrive as numbers of columns and strides.

pub mod adam;
pub mod attention;
pub mod broadcast;
pub mod dropout;
pub mod elementwise;
pub mod gather;
pub mod gelu;
pub mod inverse_index;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub mod math;
pub mod number;
pub mod recurrent;
pub mod segment;
pub mod shape;
pub mod slot_attention;
pub mod slot_mixing;
pub mod slot_rows;
pub mod slots;
pub mod time;
pub mod vector;

/// Values per piece of an element-wise loop that is shared out to threads.
const PIECE: usize = 1 << 14;

/// Rows per piece for rows of `cols` values.
fn piece_rows(cols: usize) -> usize {
    (PIECE / cols.max(1)).max(1)
}

/// The sums of what pieces have computed of two parameters of `cols` values each, in the order of the pieces.
fn add_pairs(cols: usize, pieces: Vec<(Vec<f32>, Vec<f32>)>) -> (Vec<f32>, Vec<f32>) {
    let (mut first, mut second) = (vec![0.0; cols], vec![0.0; cols]);
    for (a, b) in pieces {
        first.iter_mut().zip(&a).for_each(|(sum, v)| *sum += v);
        second.iter_mut().zip(&b).for_each(|(sum, v)| *sum += v);
    }
    (first, second)
}
