//! Products by AMX, the matrix unit of Intel's servers since 2023: factors in bf16, sums in f32.
//!
//! The unit multiplies two tiles of 1 KiB and adds to a tile of 16 x 16 sums: 16,384 operations in 16 cycles, sixteen
//! times what two AVX-512 units do. What is left to save is the way there, so each factor is rounded and packed once
//! (see [`pack`](super::pack)), and four tiles of sums stay in the unit while a pair of tiles of either factor goes by.
//!
//! An element is summed in the order of its places, so it has the same bits whatever else is in the matrix, however
//! rows are shared among threads.
//!
//! The unit's registers exist for a process that asked the kernel for them. Sums are in them inside one block of
//! assembly only; their shape stays set for the rows that a thread computes, which run no work of others.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::thread::LocalKey;

use rayon::prelude::*;

use super::pack::{DEPTH, Factor, LINES, Side, Tile, pack};
use super::{Into, ViewMut};

/// Rows and columns of the sums that the unit holds at once.
const BLOCK: usize = 2 * LINES;

/// Rows of a product that a thread computes before it takes others, at most.
const SHARE: usize = 4 * BLOCK;

/// Tiles of room that a thread keeps for its next product: 4 MiB.
const KEPT: usize = 4096;

/// The sums of a block, row by row.
#[repr(C, align(64))]
struct Sums([f32; BLOCK * BLOCK]);

/// The shape of the tile registers, as `LDTILECFG` reads it.
#[repr(C, align(64))]
struct Registers {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight registers of 16 rows of 64 bytes.
static REGISTERS: Registers = Registers {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

thread_local! {
    /// Room for packed factors: of the rows that this thread is at, and of a right factor.
    static LEFT: RefCell<Vec<Tile>> = const { RefCell::new(Vec::new()) };
    static RIGHT: RefCell<Vec<Tile>> = const { RefCell::new(Vec::new()) };
}

/// Whether this CPU has the unit and the kernel lets this process use it. Asked once.
pub(super) fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        let features = __cpuid_count(7, 0).edx;
        std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512bf16")
            && features & AMX_BF16 != 0
            && features & AMX_TILE != 0
            && permitted()
    })
}

/// Asks the kernel for the state of the tile registers.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and changes nothing but what registers the threads of this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// `destination = scale * left * right`, or added to it, `shared` among threads or on this one. The depth is 1 at
/// least.
///
/// # Panics
/// Where there is no such unit: see [`present`].
pub(super) fn product(
    destination: ViewMut<'_>,
    into: Into,
    scale: f32,
    (left, right): (Factor<'_>, Factor<'_>),
    shared: bool,
) {
    assert!(present(), "a product by AMX on a CPU without it");
    let ViewMut { data, stride, rows, columns } = destination;
    let depth = left.depth.div_ceil(DEPTH);
    // Taken out: a thread that waits for others may begin another product meanwhile.
    let mut room = RIGHT.take();
    let runs = resized(&mut room, columns.div_ceil(LINES) * depth);
    let pack_run = |(run, tiles): (usize, &mut [Tile])| {
        // SAFETY: `present` has found the vectors that are needed.
        unsafe { pack(tiles, right, run * LINES, Side::Right) }
    };
    let each = match shared {
        true => rows.div_ceil(rayon::current_num_threads()).next_multiple_of(BLOCK).min(SHARE),
        false => SHARE,
    };
    let share = |runs: &[Tile], (share, data): (usize, &mut [f32])| {
        let from = share * each;
        let mut rows = Rows { data, stride, columns, first: from, count: each.min(rows - from) };
        // SAFETY: the same, and it has found the unit.
        unsafe { rows.compute((into, scale), left, (runs, depth)) }
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

/// Rows of a destination that one thread computes.
struct Rows<'a> {
    data: &'a mut [f32],
    stride: usize,
    columns: usize,
    /// The first of them in the destination, and in the left factor.
    first: usize,
    count: usize,
}

impl Rows<'_> {
    /// Computes them from their lines of `left` and the packed `right` factor, which has `depth` tiles for each 16
    /// columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn compute(&mut self, (into, scale): (Into, f32), left: Factor<'_>, (right, depth): (&[Tile], usize)) {
        let mut room = LEFT.take();
        let (upper, lower) = resized(&mut room, 2 * depth).split_at_mut(depth);
        let mut sums = Sums([0.0; BLOCK * BLOCK]);
        // SAFETY: it reads the 64 bytes of a valid shape.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const REGISTERS, options(nostack, readonly)) }
        for (block, data) in self.data.chunks_mut(BLOCK * self.stride).enumerate() {
            let height = BLOCK.min(self.count - block * BLOCK);
            pack(upper, left, self.first + block * BLOCK, Side::Left);
            let mut lefts = [&*upper; 2];
            if height > LINES {
                pack(lower, left, self.first + block * BLOCK + LINES, Side::Left);
                lefts[1] = lower;
            }
            for column in (0..self.columns).step_by(BLOCK) {
                let run = |column: usize| &right[column / LINES * depth..][..depth];
                let width = BLOCK.min(self.columns - column);
                let rights = [run(column), run(if width > LINES { column + LINES } else { column })];
                // SAFETY: the registers have the shape of tiles now.
                unsafe { multiply(lefts, rights, &mut sums) }
                for (row, sums) in data.chunks_mut(self.stride).zip(sums.0.chunks_exact(BLOCK)) {
                    let row = row[column..column + width].iter_mut().zip(sums);
                    match into {
                        Into::Replace => row.for_each(|(value, sum)| *value = scale * sum),
                        Into::Add => row.for_each(|(value, sum)| *value += scale * sum),
                    }
                }
            }
        }
        // SAFETY: it frees the registers, which nothing uses any more.
        unsafe { asm!("tilerelease", options(nomem, nostack)) }
        keep(&LEFT, room);
    }
}

/// The sums of two runs of 16 lines of either factor, each with the others.
///
/// # Safety
/// The CPU has the unit, and its registers were given the shape [`REGISTERS`] on this thread.
unsafe fn multiply(left: [&[Tile]; 2], right: [&[Tile]; 2], sums: &mut Sums) {
    let depth = left[0].len();
    assert!(depth > 0 && left[1].len() == depth && right.iter().all(|run| run.len() == depth));
    // SAFETY: of each run the loop reads `depth` tiles of 16 rows with 64 bytes from row to row. It writes 32 rows of
    // 128 bytes, which is `Sums`. No other code uses the unit's registers between the instructions of this block.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{upper} + {tile_row}*1]",
            "tileloadd tmm6, [{first} + {tile_row}*1]",
            "tileloadd tmm7, [{second} + {tile_row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{lower} + {tile_row}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {upper}, 1024",
            "add {lower}, 1024",
            "add {first}, 1024",
            "add {second}, 1024",
            "dec {depth}",
            "jnz 2b",
            "tilestored [{sums} + {sums_row}*1], tmm0",
            "tilestored [{sums} + {sums_row}*1 + 64], tmm1",
            "tilestored [{sums} + {sums_row}*1 + 2048], tmm2",
            "tilestored [{sums} + {sums_row}*1 + 2112], tmm3",
            upper = inout(reg) left[0].as_ptr() => _,
            lower = inout(reg) left[1].as_ptr() => _,
            first = inout(reg) right[0].as_ptr() => _,
            second = inout(reg) right[1].as_ptr() => _,
            depth = inout(reg) depth => _,
            tile_row = in(reg) 64_usize,
            sums = in(reg) sums.0.as_mut_ptr(),
            sums_row = in(reg) 128_usize,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        );
    }
}
