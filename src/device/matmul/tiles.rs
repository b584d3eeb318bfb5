//! Products of factors in bf16 with sums in f32, by the unit that this CPU has for them: [`amx`](super::amx) or
//! [`vectors`](super::vectors).
//!
//! Either is so fast that the way there counts: each factor is rounded and packed once (see [`pack`](super::pack)), in
//! the order in which it is read.
//!
//! An element is summed in the order of its places, so it has the same bits whatever else is in the matrix, however
//! rows are shared among threads. Between the two units bits differ.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::thread::LocalKey;

use rayon::prelude::*;

use super::pack::{DEPTH, Factor, LINES, Side, Tile, pack, pack_as_it_lies};
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
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Amx,
    Vectors,
}

impl Unit {
    /// The one to use on this CPU. Asked once.
    fn of_this_cpu() -> Option<Self> {
        static UNIT: OnceLock<Option<Unit>> = OnceLock::new();
        *UNIT.get_or_init(|| {
            let has_vectors = std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512bf16");
            match has_vectors {
                true if amx::present() => Some(Self::Amx),
                true if vectors::are_fast() => Some(Self::Vectors),
                _ => None,
            }
        })
    }

    /// Products with fewer multiply-adds than this run on the calling thread: waking others costs more.
    fn parallel_from(self) -> usize {
        match self {
            Self::Amx => 1 << 22,
            Self::Vectors => 1 << 20,
        }
    }
}

/// Whether this CPU has a unit.
pub(super) fn present() -> bool {
    Unit::of_this_cpu().is_some()
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
    /// Of which side the tiles of the left one are, for vectors; AMX needs the left.
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
/// Where there is no unit: see [`present`].
pub(super) fn product(
    destination: ViewMut<'_>,
    into: Into,
    scale: f32,
    (left, right): (Factor<'_>, Factor<'_>),
    alone: bool,
) {
    let unit = Unit::of_this_cpu();
    assert!(unit.is_some(), "a product in bf16 on a CPU without a unit for it");
    let Some(unit) = unit else { return };
    let ViewMut { data, stride, rows, columns } = destination;
    let shared = rows * columns * left.depth >= unit.parallel_from() && !alone;
    let depth = left.depth.div_ceil(DEPTH);
    // Taken out: a thread that waits for others may begin another product meanwhile.
    let mut room = RIGHT.take();
    let runs = resized(&mut room, columns.div_ceil(LINES) * depth);
    let pack_run = |(run, tiles): (usize, &mut [Tile])| {
        // SAFETY: `of_this_cpu` has found the vectors that are needed.
        unsafe { pack(tiles, right, run * LINES, Side::Right) }
    };
    let each = match shared {
        true => rows.div_ceil(rayon::current_num_threads()).next_multiple_of(BLOCK).min(SHARE),
        false => SHARE,
    };
    let share = |right: &[Tile], (share, data): (usize, &mut [f32])| {
        let first = share * each;
        let rows = Rows { data, stride, columns, count: each.min(rows - first), into, scale };
        // SAFETY: the same, and it has found the unit.
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
            let first = first + from + run * LINES;
            match unit {
                Unit::Amx => pack(tiles, left, first, Side::Left),
                Unit::Vectors => pack_as_it_lies(tiles, left, first),
            }
        }
        let mut rows = Rows { data, stride, columns, count, into, scale };
        let pairs = left.depth.div_ceil(2);
        let factors = Packed { left: lines, lies_as: left.lies_as(), right, depth, pairs };
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
