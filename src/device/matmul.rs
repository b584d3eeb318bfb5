//! Matrix products in main memory through the `gemm` crate, over checked strided views: [`View`] and
//! [`ViewMut`] carry shape and strides, so that heads, transposes and padded rows cost no copies.
//!
//! The product of one element is summed in an order that does not depend on the number of threads, so
//! results are bit-identical at any thread count; `nn`'s tests hold that. A gradient of weights is a small matrix
//! whose elements are sums over all rows of a batch: such sums are cut into pieces, so that threads have something to
//! share without dividing the small matrix.
//!
//! A thread may ask for products of a [`Precision`] below f32, which some CPUs compute several times as fast.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vectors;

use std::cell::Cell;
use std::thread::LocalKey;

use gemm::Parallelism;
use rayon::prelude::*;

/// Products with fewer multiply-adds than this run on the calling thread: waking others costs more.
const PARALLEL_FROM: usize = 1 << 19;

/// Values of a product from which on there is enough of it for any number of threads to share.
const SMALL: usize = 1 << 18;

/// Sums of fewer products than twice this are not cut into pieces.
const PIECE: usize = 256;

/// A sum is cut into at most this many pieces: each costs a matrix to add up.
const PIECES_MAX: usize = 4;

/// Columns, and length of sums, from which on a product in bf16 is faster. The number of rows has no say: whether a
/// row is rounded must not depend on which others are computed with it.
#[cfg(target_arch = "x86_64")]
const BF16_FROM: usize = 32;

/// A matrix read in place: element `(r, c)` is `data[r * row_stride + c * column_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A row-major matrix written in place, with `stride >= columns` values from row to row.
#[derive(Debug)]
pub struct ViewMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

fn fits(len: usize, rows: usize, columns: usize, stride: usize) -> bool {
    rows == 0 || columns == 0 || (columns <= stride && (rows - 1) * stride + columns <= len)
}

impl<'a> View<'a> {
    /// A row-major matrix without gaps.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * columns`.
    #[must_use]
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// A row-major matrix with `stride` values from row to row.
    ///
    /// # Panics
    /// If a row would reach beyond `data`, or `stride < columns`.
    #[must_use]
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, columns, stride),
            "a {rows}x{columns} view needs more than it was given"
        );
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Columns `from..to`.
    fn columns(self, from: usize, to: usize) -> Self {
        let data = self.data.get(from * self.column_stride..).unwrap_or_default();
        Self { data, columns: to - from, ..self }
    }

    /// The left factor of a product in bf16.
    #[cfg(target_arch = "x86_64")]
    fn rows_as_lines(self) -> pack::Factor<'a> {
        let Self { data, rows, columns, row_stride, column_stride } = self;
        pack::Factor {
            data,
            lines: rows,
            depth: columns,
            line_stride: row_stride,
            place_stride: column_stride,
        }
    }

    /// The same matrix with rows and columns exchanged.
    #[must_use]
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

impl<'a> ViewMut<'a> {
    /// A row-major matrix without gaps.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * columns`.
    #[must_use]
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// A row-major matrix with `stride` values from row to row; values between the rows are left alone.
    ///
    /// # Panics
    /// If a row would reach beyond `data`, or `stride < columns`.
    #[must_use]
    pub fn strided(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, columns, stride),
            "a {rows}x{columns} view needs more than it was given"
        );
        Self { data, rows, columns, stride }
    }
}

/// What happens to the old content of the destination of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// It is overwritten (and may be anything, NaN included).
    Replace,
    /// The product is added to it.
    Add,
}

impl Into {
    /// Over fresh memory the product replaces, otherwise it is added.
    #[must_use]
    pub fn over(fresh: bool) -> Self {
        if fresh { Self::Replace } else { Self::Add }
    }
}

/// In which numbers factors are multiplied. They come, and sums are made and returned, in f32. A step rounds gradients
/// of weights to the same numbers, on every CPU, where it adds up those of several parts of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As they come.
    #[default]
    F32,
    /// Rounded to bf16, of 8 significant bits, to the nearest, where the CPU has a unit for it and rows are long enough
    /// to gain; otherwise as they come.
    Bf16,
}

impl Precision {
    /// The word for it in settings and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// What multiplies in it beyond ordinary vectors, by name: `AMX` or `AVX512-BF16`.
    #[must_use]
    pub fn unit(self) -> Option<&'static str> {
        if self == Self::Bf16 { bf16_unit() } else { None }
    }

    /// What this CPU computes fastest.
    #[must_use]
    pub fn fastest() -> Self {
        if has_bf16() { Self::Bf16 } else { Self::F32 }
    }
}

/// Whether this CPU multiplies in bf16 faster than in f32: it has AMX, and a kernel that lets this process use it, or
/// it is one of AMD's with AVX-512's product of bf16.
#[must_use]
pub fn has_bf16() -> bool {
    bf16_unit().is_some()
}

fn bf16_unit() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    return tiles::unit_name();
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

thread_local! {
    /// Whether products that this thread begins are computed by it alone.
    static ALONE: Cell<bool> = const { Cell::new(false) };
    /// The precision of products that this thread begins.
    static PRECISION: Cell<Precision> = const { Cell::new(Precision::F32) };
}

/// Runs `work`, whose products are not shared among threads: the caller has given the others work of their own. The
/// results are the same.
pub fn alone<R>(work: impl FnOnce() -> R) -> R {
    with(&ALONE, true, work)
}

/// Runs `work`, whose products on this thread have this precision. While it waits for other threads, it may take up
/// work of theirs: all that a pool of threads does at a time has to ask for the same.
pub fn in_precision<R>(precision: Precision, work: impl FnOnce() -> R) -> R {
    with(&PRECISION, precision, work)
}

/// Runs `work` while `cell` holds `value`.
fn with<T: Copy, R>(cell: &'static LocalKey<Cell<T>>, value: T, work: impl FnOnce() -> R) -> R {
    /// Puts back what was set before, also when the work panics.
    struct Before<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);
    impl<T: Copy> Drop for Before<T> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _before = Before(cell, cell.replace(value));
    work()
}

/// `destination = scale * a * b`, or `destination += scale * a * b`.
///
/// # Panics
/// If the shapes do not agree.
pub fn matmul(destination: ViewMut<'_>, into: Into, scale: f32, a: View<'_>, b: View<'_>) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(
        (k, m, n),
        (b.rows, destination.rows, destination.columns),
        "product of {}x{} and {}x{} into {}x{}",
        a.rows,
        a.columns,
        b.rows,
        b.columns,
        destination.rows,
        destination.columns
    );
    #[cfg(target_arch = "x86_64")]
    if PRECISION.get() == Precision::Bf16 && n.min(k) >= BF16_FROM && has_bf16() {
        let factors = (a.rows_as_lines(), b.t().rows_as_lines());
        return tiles::product(destination, into, scale, factors, ALONE.get());
    }
    let pieces = pieces(m, n, k);
    if pieces > 1 {
        return sum_of_pieces(destination, into, scale, a, b, pieces);
    }
    let shared = m * n * k >= PARALLEL_FROM && !ALONE.get();
    let parallelism = if shared { Parallelism::Rayon(0) } else { Parallelism::None };
    product(destination, into, scale, a, b, parallelism);
}

/// Into how many pieces the sums of an `m x n` product over `k` are cut.
fn pieces(m: usize, n: usize, k: usize) -> usize {
    let is_long = k >= 2 * m.max(n) && m * n <= SMALL && m * n * k >= PARALLEL_FROM;
    if is_long { (k / PIECE).clamp(1, PIECES_MAX) } else { 1 }
}

/// The product as the sum, in order, of those of `pieces` runs of columns of `a` with their rows of `b`.
fn sum_of_pieces(destination: ViewMut<'_>, into: Into, scale: f32, a: View<'_>, b: View<'_>, pieces: usize) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let run = |piece: usize| {
        let (from, to) = (k * piece / pieces, k * (piece + 1) / pieces);
        (a.columns(from, to), b.t().columns(from, to).t())
    };
    let ViewMut { data, stride, .. } = destination;
    let mut first = || {
        let (a, b) = run(0);
        product(ViewMut::strided(data, m, n, stride), into, scale, a, b, Parallelism::None);
    };
    let part = |piece| {
        let (a, b) = run(piece);
        let mut part = vec![0.0; m * n];
        product(ViewMut::new(&mut part, m, n), Into::Replace, scale, a, b, Parallelism::None);
        part
    };
    let ((), others): (_, Vec<Vec<f32>>) = if ALONE.get() {
        (first(), (1..pieces).map(part).collect())
    } else {
        rayon::join(first, || (1..pieces).into_par_iter().map(part).collect())
    };
    for (r, row) in data.chunks_mut(stride).take(m).enumerate() {
        for part in &others {
            row.iter_mut().zip(&part[r * n..(r + 1) * n]).for_each(|(sum, value)| *sum += value);
        }
    }
}

/// One product on the calling thread, or shared out by `parallelism`.
fn product(
    destination: ViewMut<'_>,
    into: Into,
    scale: f32,
    a: View<'_>,
    b: View<'_>,
    parallelism: Parallelism,
) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    if m == 0 || n == 0 {
        return;
    }
    let stride = |s: usize| s as isize;
    // SAFETY: the constructors checked that every element of the three views lies inside its slice, and
    // `destination` is borrowed mutably, so it overlaps neither `a` nor `b`. With `read_dst` false the
    // destination is only written.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            destination.data.as_mut_ptr(),
            1,
            stride(destination.stride),
            into == Into::Add,
            a.data.as_ptr(),
            stride(a.column_stride),
            stride(a.row_stride),
            b.data.as_ptr(),
            stride(b.column_stride),
            stride(b.row_stride),
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                ((i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    #[test]
    fn agrees_with_the_definition_in_all_orientations() {
        for (m, n, k) in
            [(1, 1, 1), (3, 5, 7), (17, 33, 9), (64, 1, 50), (1, 64, 50), (4, 4, 0), (19, 23, 1301)]
        {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let (at, bt) = (values(k * m, 1), values(n * k, 2));
            let mut plain = vec![f32::NAN; m * n];
            matmul(
                ViewMut::new(&mut plain, m, n),
                Into::Replace,
                0.5,
                View::new(&a, m, k),
                View::new(&b, k, n),
            );
            let mut both = vec![1.0; m * n];
            let (va, vb) = (View::new(&at, k, m).t(), View::new(&bt, n, k).t());
            matmul(ViewMut::new(&mut both, m, n), Into::Add, 1.0, va, vb);
            for r in 0..m {
                for c in 0..n {
                    let want: f64 = (0..k).map(|i| f64::from(a[r * k + i]) * f64::from(b[i * n + c])).sum();
                    assert!(
                        (f64::from(plain[r * n + c]) - 0.5 * want).abs() < 1e-4,
                        "{m}x{n}x{k} at {r},{c}"
                    );
                    let want: f64 = (0..k).map(|i| f64::from(at[i * m + r]) * f64::from(bt[c * k + i])).sum();
                    assert!(
                        (f64::from(both[r * n + c]) - 1.0 - want).abs() < 1e-4,
                        "{m}x{n}x{k}ᵀ at {r},{c}"
                    );
                }
            }
        }
    }

    #[test]
    fn leaves_values_between_rows_alone() {
        let (a, b) = (values(6, 1), values(6, 2));
        let mut out = vec![7.0; 8];
        matmul(
            ViewMut::strided(&mut out, 2, 2, 4),
            Into::Replace,
            1.0,
            View::new(&a, 2, 3),
            View::new(&b, 3, 2),
        );
        assert_eq!(&out[2..4], &[7.0, 7.0]);
        assert_eq!(&out[6..8], &[7.0, 7.0]);
    }

    #[test]
    #[should_panic(expected = "needs more")]
    fn refuses_a_view_beyond_its_slice() {
        let _ = View::strided(&[0.0; 7], 2, 4, 4);
    }
}
