//! AMX, the matrix unit of Intel's servers since 2023.
//!
//! The unit multiplies two tiles of 1 KiB and adds to a tile of 16 x 16 sums: 16,384 operations in 16 cycles, sixteen
//! times what two AVX-512 units do in f32. Four tiles of sums stay in the unit while a pair of tiles of either factor
//! goes by.
//!
//! The unit's registers exist for a process that asked the kernel for them. Sums are in them inside one block of
//! assembly only; their shape stays set for the rows that a thread computes, which run no work of others.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;

use super::Into;
use super::pack::{LINES, Tile};
use super::tiles::{BLOCK, Packed, Rows};

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

/// Whether this CPU has the unit and the kernel lets this process use it.
pub(super) fn present() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    let features = __cpuid_count(7, 0).edx;
    features & AMX_BF16 != 0 && features & AMX_TILE != 0 && permitted()
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

/// Gives the registers of this thread the shape of tiles.
///
/// # Safety
/// The CPU has the unit: see [`present`].
pub(super) unsafe fn begin() {
    // SAFETY: it reads the 64 bytes of a valid shape.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const REGISTERS, options(nostack, readonly)) }
}

/// Frees the registers of this thread.
///
/// # Safety
/// The CPU has the unit.
pub(super) unsafe fn end() {
    // SAFETY: nothing uses the registers any more.
    unsafe { asm!("tilerelease", options(nomem, nostack)) }
}

/// Computes rows of a product.
///
/// # Safety
/// The CPU has the unit, and this thread has called [`begin`]. Tiles are laid out as those of their sides.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply(rows: &mut Rows<'_>, factors: Packed<'_>) {
    let Packed { left, right, depth, .. } = factors;
    let (upper, lower) = left.split_at(depth);
    let lefts = [upper, if lower.is_empty() { upper } else { lower }];
    let mut sums = Sums([0.0; BLOCK * BLOCK]);
    for column in (0..rows.columns).step_by(BLOCK) {
        let run = |column: usize| &right[column / LINES * depth..][..depth];
        let width = BLOCK.min(rows.columns - column);
        let rights = [run(column), run(if width > LINES { column + LINES } else { column })];
        // SAFETY: as this function's.
        unsafe { multiply_block(lefts, rights, &mut sums) }
        for (row, sums) in rows.data.chunks_mut(rows.stride).zip(sums.0.chunks_exact(BLOCK)) {
            let row = row[column..column + width].iter_mut().zip(sums);
            match rows.into {
                Into::Replace => row.for_each(|(value, sum)| *value = rows.scale * sum),
                Into::Add => row.for_each(|(value, sum)| *value += rows.scale * sum),
            }
        }
    }
}

/// The sums of two runs of 16 lines of either factor, each with the others.
///
/// # Safety
/// The CPU has the unit, and its registers were given the shape [`REGISTERS`] on this thread.
unsafe fn multiply_block(left: [&[Tile]; 2], right: [&[Tile]; 2], sums: &mut Sums) {
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
