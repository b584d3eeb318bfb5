//! `evergraph bench ops --device cuda:0`: gathering rows on a GPU, from its own memory and over the bus, beside the
//! bandwidth limit and the alternative without it.
//!
//! ```text
//!   device gather    from the GPU's memory        beside   a copy of as many bytes there
//!   zero copy        from the host's, in place     beside   a copy of as many bytes from there,
//!                                                  and      gathered by the CPU, then copied
//! ```
//!
//! Row numbers are drawn uniformly from a table larger than any cache, anew for each of the calls whose mean is a time.
//! Bytes count once. Times are the GPU's, except
//! for the CPU's work, which is timed by the wall clock. The figures of [layers](super::gpu_layers) follow.

use rayon::prelude::*;
use serde_json::{Value, json};

use super::super::timed::timed;
use super::super::{Spread, deliver, deliver_so_far, seconds};
use super::{OpsArgs, gpu_layers};
use crate::cli::output;
use crate::device::cuda::rows::{RowCall, RowLayout, RowList, Table};
use crate::device::cuda::{Arena, Cuda, CudaBuffer, PinnedSlice};
use crate::device::rng;

/// Bytes of a row: from a part of a cache line to a page, including node and edge features of well-known streams.
const WIDTHS: &[usize] = &[16, 32, 64, 128, 344, 400, 688, 1376, 4096];
/// Rows of a list. Short lists show the cost of a call, long ones that of a byte.
const COUNTS: &[usize] = &[100, 1_000, 10_000, 100_000, 1_000_000];
/// Bytes of the table, and of the longest list's rows.
const TABLE_BYTES: usize = 1 << 30;
const QUICK_TABLE_BYTES: usize = 1 << 20;
/// Points of a quick run, a smoke test: bytes of a row, rows of a list.
const QUICK: [(usize, usize); 3] = [(16, 1_000), (344, 100), (688, 100)];
/// Runs of one figure, and calls of each.
const HOW: (u32, u32) = (7, 20);
const QUICK_HOW: (u32, u32) = (1, 2);
/// More than any cache has of rows.
const CACHED_BYTES: usize = 256 << 20;
/// Rows that a thread of the CPU gathers at a time.
const PART_ROWS: usize = 1_024;

const WHAT: &str = "a measurement of rows";

/// Tables and room of all points.
struct Room {
    on_gpu: CudaBuffer<u8>,
    on_host: PinnedSlice<u8>,
    staged: PinnedSlice<u8>,
    to: CudaBuffer<u8>,
    errors: CudaBuffer<u32>,
}

/// Measures.
///
/// # Errors
/// No GPU, an operation that has no points on it, or the GPU's.
pub fn run(args: &OpsArgs) -> anyhow::Result<()> {
    let (cuda, facts) = args.compute.open()?;
    let (bytes, how) = if args.quick { (QUICK_TABLE_BYTES, QUICK_HOW) } else { (TABLE_BYTES, HOW) };
    let mut room = room(&cuda, bytes)?;
    let mut rows = Vec::new();
    for &width in WIDTHS {
        for &count in COUNTS.iter().filter(|count| **count * width <= bytes / 2) {
            if !args.quick || QUICK.contains(&(width, count)) {
                let row = point(&cuda, &mut room, (width, count), how)?;
                output::print_status(&line(&row));
                rows.push(row);
            }
        }
    }
    drop(room);
    let (device, threads) = (args.compute.device.to_string(), rayon::current_num_threads());
    let figures = |layers: &[Value]| {
        let (table_bytes, rows) = (bytes, &rows);
        json!({ "device": device, "gpu": facts, "table_bytes": table_bytes, "rows": rows, "layers": layers })
    };
    deliver_so_far(args.json.as_deref(), "ops", threads, figures(&[]))?;
    let sizes = if args.quick { gpu_layers::QUICK } else { gpu_layers::TRAINING };
    let layers = if args.ops.is_empty() { gpu_layers::measure(&cuda, &sizes)? } else { Vec::new() };
    deliver(args.json.as_deref(), "ops", threads, figures(&layers))
}

fn room(cuda: &Cuda, bytes: usize) -> anyhow::Result<Room> {
    let mut arena = Arena::new(bytes + bytes / 2, Some(cuda))?;
    let (mut on_host, staged) = (arena.take::<u8>(bytes)?, arena.take::<u8>(bytes / 2)?);
    for (place, value) in on_host.as_mut_slice()?.chunks_mut(8).zip(0_u64..) {
        let random = rng::random_u64([1, value, 0, 0]).to_le_bytes();
        place.copy_from_slice(&random[..place.len()]);
    }
    let mut on_gpu = CudaBuffer::zeros(cuda, cuda.compute(), bytes, WHAT)?;
    on_gpu.copy_from_pinned(&on_host)?;
    Ok(Room {
        on_gpu,
        on_host,
        staged,
        to: CudaBuffer::zeros(cuda, cuda.compute(), bytes / 2, WHAT)?,
        errors: CudaBuffer::zeros(cuda, cuda.compute(), 1, WHAT)?,
    })
}

/// All figures of one width and length of the list.
fn point(
    cuda: &Cuda,
    room: &mut Room,
    (width, count): (usize, usize),
    how: (u32, u32),
) -> anyhow::Result<Value> {
    let layout = RowLayout::dense(room.on_gpu.len() / width, width);
    let numbers = u32::try_from(layout.rows)?;
    let list = |call: u64| -> Vec<u32> {
        (0..count as u64).map(|i| rng::below([2, width as u64, i, call], numbers)).collect()
    };
    // Calls have lists of their own, or so many that no cache has their rows when one comes again.
    let turns = CACHED_BYTES.div_ceil(width * count).min((how.0 * how.1) as usize) as u64;
    let lists = (0..turns).map(|call| CudaBuffer::from_slice(cuda, cuda.compute(), &list(call), WHAT));
    let lists = lists.collect::<Result<Vec<_>, _>>()?;
    let Room { on_gpu, on_host, staged, to, errors } = room;
    let mut gather = |table: Table<'_, u8>, list: &CudaBuffer<u32>, to: &mut CudaBuffer<u8>| {
        let list = RowList::Narrow(list);
        RowCall { cuda, stream: cuda.compute(), list, errors }.gather(table, layout, to, width)
    };
    let (first, mut in_turn) = (&lists[0], lists.iter().cycle());
    let mut next = || in_turn.next().unwrap_or(first);
    let device = timed(cuda, how, || gather(Table::Gpu(on_gpu), next(), to))?;
    gather(Table::Gpu(on_gpu), first, to)?;
    let by_gpu = to.copy_to_host()?;
    let zero_copy = timed(cuda, how, || gather(Table::Host(on_host), next(), to))?;
    gather(Table::Host(on_host), first, to)?;
    let over_bus = to.copy_to_host()?;
    let bytes = width * count;
    let gathered_by_cpu = Spread::of(gathered(cuda, (on_host, layout), (&list, how.0), staged, to)?);
    let by_cpu = to.copy_to_host()?;
    anyhow::ensure!(
        by_gpu[..bytes] == by_cpu[..bytes] && over_bus[..bytes] == by_cpu[..bytes],
        "{count} rows of {width} bytes: the GPU's differ from the CPU's"
    );
    let device_copy = timed(cuda, how, || to.copy_front_from(on_gpu, bytes))?;
    let pinned_copy = timed(cuda, how, || to.copy_front_from_pinned(on_host, bytes))?;
    Ok(json!({
        "op": "gather_rows",
        "row_bytes": width,
        "table_rows": layout.rows,
        "rows": count,
        "bytes": bytes,
        "device_gather_seconds": device,
        "device_copy_seconds": device_copy,
        "zero_copy_seconds": zero_copy,
        "pinned_copy_seconds": pinned_copy,
        "cpu_gather_and_copy_seconds": gathered_by_cpu,
        "device_gather_of_copy": device_copy.median / device.median,
        "zero_copy_of_pinned_copy": pinned_copy.median / zero_copy.median,
        "zero_copy_over_cpu_gather": gathered_by_cpu.median / zero_copy.median,
    }))
}

/// Seconds in which the CPU gathers the rows into pinned memory, and the GPU copies them.
fn gathered(
    cuda: &Cuda,
    (table, layout): (&PinnedSlice<u8>, RowLayout),
    (list_of, runs): (&dyn Fn(u64) -> Vec<u32>, u32),
    staged: &mut PinnedSlice<u8>,
    to: &mut CudaBuffer<u8>,
) -> anyhow::Result<Vec<f64>> {
    let (width, mut spent) = (layout.width, Vec::new());
    // The last one has the list that the GPU's rows are compared by.
    for call in (0..=u64::from(runs)).rev() {
        let list = list_of(call);
        let (time, done) = seconds(|| {
            let (from, rows) = (table.as_slice()?, staged.as_mut_slice()?);
            let parts = rows.par_chunks_mut(PART_ROWS * width).zip(list.par_chunks(PART_ROWS));
            parts.for_each(|(rows, list)| {
                for (to, &row) in rows.chunks_exact_mut(width).zip(list) {
                    to.copy_from_slice(&from[row as usize * width..][..width]);
                }
            });
            to.copy_front_from_pinned(staged, list.len() * width)?;
            cuda.compute().synchronize()
        });
        done?;
        spent.push(time);
    }
    // The first call warms up caches.
    spent.remove(0);
    Ok(spent)
}

/// The same for people.
fn line(row: &Value) -> String {
    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let microseconds = |key: &str| row[key]["median"].as_f64().unwrap_or(f64::NAN) * 1e6;
    format!(
        "{:>8} rows of {:>4} B: on the GPU {:>9.1} us, {:>4.0} % of a copy; over the bus {:>9.1} us, {:>4.0} % of a \
         copy and {:>5.2}x gathered by the CPU",
        number("rows"),
        number("row_bytes"),
        microseconds("device_gather_seconds"),
        100.0 * number("device_gather_of_copy"),
        microseconds("zero_copy_seconds"),
        100.0 * number("zero_copy_of_pinned_copy"),
        number("zero_copy_over_cpu_gather"),
    )
}
