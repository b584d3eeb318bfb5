//! Products of factors in bf16 with sums in f32, by the unit that this CPU has for them: [`amx`](super::amx) or
//! [`vectors`](super::vectors).
//!
//! Either is so fast that the way there counts: each factor is rounded and packed once (see [`pack`](super::pack)), in
//! the order in which it is read.
//!
//! An element is summed in an order that its length alone decides, so it has the same bits whatever else is in the
//! matrix, however rows are shared among threads. The units have other orders, so bits differ between them.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::thread::LocalKey;

use rayon::prelude::*;

use super::pack::{DEPTH, Factor, LINES, Side, Tile, pack};
use super::{Into, ViewMut, amx, vectors};

/// Rows of a product that are computed at once.
pub(super) const BLOCK: usize = 2 * LINES;

/// Rows of a product that a thread computes before it takes others, at most.
const SHARE: usize = 4 * BLOCK;

/// Tiles of room that a thread keeps for its next product: 4 MiB.
const KEPT: usize = 4096;

thread_local! {
    /// Room for packed factors: of the rows that this thread is at, and of a right factor.
    static LEFT: RefCell<Vec<Tile>> = const { RefCell::new(Vec::new()) };
    static RIGHT: RefCell<Vec<Tile>> = const { RefCell::new(Vec::new()) };
}

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Amx,
    Vectors,
}

impl Unit {
    /// Those that this CPU has, the fastest first.
    fn all() -> impl Iterator<Item = Self> {
        // Factors are packed by vectors in any case.
        let has_vectors = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512bf16");
        let has_amx = has_vectors && amx::present();
        [(Self::Amx, has_amx), (Self::Vectors, has_vectors)]
            .into_iter()
            .filter_map(|(unit, is_there)| is_there.then_some(unit))
    }

    /// The one to use on this CPU. Asked once.
    fn of_this_cpu() -> Option<Self> {
        static UNIT: OnceLock<Option<Unit>> = OnceLock::new();
        *UNIT.get_or_init(|| Self::all().find(|unit| *unit == Self::Amx || vectors::are_fast()))
    }

    /// Products with fewer multiply-adds than this run on the calling thread: waking others costs more.
    fn parallel_from(self) -> usize {
        match self {
            Self::Amx => 1 << 22,
            Self::Vectors => 1 << 20,
        }
    }
}

/// The name of this CPU's unit, if it has one.
pub(super) fn unit_name() -> Option<&'static str> {
    Unit::of_this_cpu().map(|unit| match unit {
        Unit::Amx => "AMX",
        Unit::Vectors => "AVX512-BF16",
    })
}

/// Rows of a destination, at most [`BLOCK`], and what is done with their sums.
pub(super) struct Rows<'a> {
    pub data: &'a mut [f32],
    pub stride: usize,
    pub columns: usize,
    pub count: usize,
    pub into: Into,
    pub scale: f32,
}

/// The factors of some rows.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    /// One run of tiles, or one for each 16 rows.
    pub left: &'a [Tile],
    /// How the left one's tiles are laid out. AMX needs [`Side::Left`], vectors take either.
    pub lies_as: Side,
    /// A run of tiles for each 16 columns.
    pub right: &'a [Tile],
    /// Tiles of a run.
    pub depth: usize,
    /// Pairs of values of a line: the last tile of a run may have zeros behind them.
    pub pairs: usize,
}

/// `destination = scale * left * right`, or added to it, by this thread `alone` or shared among threads if it is large.
/// The depth is 1 at least.
///
/// # Panics
/// Where there is no unit: see [`unit_name`].
pub(super) fn product(
    destination: ViewMut<'_>,
    into: Into,
    scale: f32,
    (left, right): (Factor<'_>, Factor<'_>),
    alone: bool,
) {
    let unit = Unit::of_this_cpu();
    assert!(unit.is_some(), "a product in bf16 on a CPU without a unit for it");
    if let Some(unit) = unit {
        // SAFETY: this CPU has it.
        unsafe { product_by(unit, destination, (into, scale), (left, right), alone) }
    }
}

/// As [`product`].
///
/// # Safety
/// The CPU has the unit.
unsafe fn product_by(
    unit: Unit,
    destination: ViewMut<'_>,
    (into, scale): (Into, f32),
    (left, right): (Factor<'_>, Factor<'_>),
    alone: bool,
) {
    let ViewMut { data, stride, rows, columns } = destination;
    let shared = rows * columns * left.depth >= unit.parallel_from() && !alone;
    let depth = left.depth.div_ceil(DEPTH);
    // Taken out: a thread that waits for others may begin another product meanwhile.
    let mut room = RIGHT.take();
    let runs = resized(&mut room, columns.div_ceil(LINES) * depth);
    let pack_run = |(run, tiles): (usize, &mut [Tile])| {
        // SAFETY: a CPU with a unit has the vectors that are needed.
        unsafe { pack(tiles, right, run * LINES, Side::Right) }
    };
    let each = match shared {
        true => rows.div_ceil(rayon::current_num_threads()).next_multiple_of(BLOCK).min(SHARE),
        false => SHARE,
    };
    let share = |right: &[Tile], (share, data): (usize, &mut [f32])| {
        let first = share * each;
        let rows = Rows { data, stride, columns, count: each.min(rows - first), into, scale };
        // SAFETY: the CPU has the unit.
        unsafe { compute(unit, rows, (left, first), (right, depth)) }
    };
    let shares = data.len().min(rows * stride);
    if shared {
        runs.par_chunks_mut(depth).enumerate().for_each(pack_run);
        let runs = &*runs;
        data[..shares].par_chunks_mut(each * stride).enumerate().for_each(|rows| share(runs, rows));
    } else {
        runs.chunks_mut(depth).enumerate().for_each(pack_run);
        let runs = &*runs;
        data[..shares].chunks_mut(each * stride).enumerate().for_each(|rows| share(runs, rows));
    }
    keep(&RIGHT, room);
}

/// Computes rows from their lines of `left`, of which `first` is the first, and the packed right factor, which has
/// `depth` tiles for each 16 columns.
///
/// # Safety
/// The CPU has the unit.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn compute(
    unit: Unit,
    rows: Rows<'_>,
    (left, first): (Factor<'_>, usize),
    (right, depth): (&[Tile], usize),
) {
    let mut room = LEFT.take();
    let lines = resized(&mut room, BLOCK / LINES * depth);
    let lies_as = if unit == Unit::Amx { Side::Left } else { left.lies_as() };
    if unit == Unit::Amx {
        // SAFETY: the CPU has it.
        unsafe { amx::begin() }
    }
    let Rows { stride, columns, into, scale, .. } = rows;
    for (block, data) in rows.data.chunks_mut(BLOCK * stride).enumerate() {
        let from = block * BLOCK;
        let count = BLOCK.min(rows.count - from);
        let lines = &mut lines[..count.div_ceil(LINES) * depth];
        for (run, tiles) in lines.chunks_mut(depth).enumerate() {
            pack(tiles, left, first + from + run * LINES, lies_as);
        }
        let mut rows = Rows { data, stride, columns, count, into, scale };
        let pairs = left.depth.div_ceil(2);
        let factors = Packed { left: lines, lies_as, right, depth, pairs };
        match unit {
            // SAFETY: the CPU has the unit, whose registers have the shape of tiles now.
            Unit::Amx => unsafe { amx::multiply(&mut rows, factors) },
            Unit::Vectors => vectors::multiply(&mut rows, factors),
        }
    }
    if unit == Unit::Amx {
        // SAFETY: the CPU has it.
        unsafe { amx::end() }
    }
    keep(&LEFT, room);
}

/// Keeps `room` for the next product of this thread, unless it is large.
fn keep(of: &'static LocalKey<RefCell<Vec<Tile>>>, room: Vec<Tile>) {
    if room.len() <= KEPT {
        of.set(room);
    }
}

/// The first `count` tiles of `room`, which grows to hold them.
fn resized(room: &mut Vec<Tile>, count: usize) -> &mut [Tile] {
    if room.len() < count {
        room.resize(count, Tile::ZERO);
    }
    &mut room[..count]
}

#[cfg(test)]
mod tests {
    use super::super::View;
    use super::*;

    /// Small whole numbers, whose products and sums are exact in any order.
    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + i / 5 + seed) % 15) as f32 - 7.0).collect()
    }

    #[test]
    fn each_unit_computes_products_of_any_shape() {
        for (m, n, k) in
            [(1, 32, 32), (5, 33, 2), (8, 48, 64), (9, 64, 34), (17, 80, 31), (40, 100, 97), (70, 113, 1)]
        {
            let (a, b, wide) = (values(m * k, 1), values(k * n, 2), n + 2);
            for (left, right) in [
                (View::new(&a, m, k), View::new(&b, k, n)),
                (View::new(&a, k, m).t(), View::new(&b, n, k).t()),
            ] {
                let sum = |row: usize, column: usize| -> f32 {
                    let (a, b) = (
                        |i| a[row * left.row_stride + i * left.column_stride],
                        |i| b[i * right.row_stride + column * right.column_stride],
                    );
                    (0..k).map(|i| a(i) * b(i)).sum()
                };
                for (unit, into) in
                    Unit::all().flat_map(|unit| [Into::Replace, Into::Add].map(|into| (unit, into)))
                {
                    let mut found = vec![3.0; m * wide];
                    let factors = (left.rows_as_lines(), right.t().rows_as_lines());
                    let to = ViewMut::strided(&mut found, m, n, wide);
                    // SAFETY: this CPU has the unit.
                    unsafe { product_by(unit, to, (into, 0.5), factors, true) }
                    let old = if into == Into::Add { 3.0 } else { 0.0 };
                    for (row, found) in found.chunks(wide).enumerate() {
                        let expected: Vec<f32> = (0..n).map(|column| old + 0.5 * sum(row, column)).collect();
                        assert_eq!(found[..n], expected, "{unit:?}, {into:?}, row {row} of {m} x {n} x {k}");
                        assert_eq!(found[n..], [3.0; 2], "between rows");
                    }
                }
            }
        }
    }
}
