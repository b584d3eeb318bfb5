//! From the slots of a layer to the seeds of the next, on a GPU: [`further`]. The twin is `sampler::Layers`; both give
//! the same pairs in the same order. The host does not know how many there are.

#![allow(unsafe_code)]

use super::context::Cuda;
use super::error::CudaError;
use super::launch::{Grid, Launch, check_len, product, takes, to_u32};
use super::memory::CudaBuffer;
use super::seeds::{GpuSeeds, GpuSlots};
use super::stream::Stream;
use super::texts::Entry;
use super::twins::{Address, Pairs, TILE_SLOTS, TILE_THREADS};

/// The kernels of `distinct.cu`.
pub(super) const ENTRIES: &[Entry] = &[
    // pairs, key, table, room, places.
    Entry { name: "distinct_insert", parameters: takes![Pairs, u64, Address, u32, Address] },
    // pairs, table, places, sums.
    Entry { name: "distinct_count", parameters: takes![Pairs, Address, Address, Address] },
    // pairs, table, places, sums, numbers, nodes, times, seed_count.
    Entry {
        name: "distinct_number",
        parameters: takes![Pairs, Address, Address, Address, Address, Address, Address, Address],
    },
    // pairs, table, places, numbers.
    Entry { name: "distinct_spread", parameters: takes![Pairs, Address, Address, Address] },
];

/// Blocks of a multiprocessor that fill a GPU.
const BLOCKS: u32 = 8;
/// Slots of a layer that has a further one: its table has twice as many places.
const SLOTS_MAX: usize = 1 << 30;
/// No slot, in a place of the table.
const NO_SLOT: u32 = u32::MAX;

/// What making a layer's seeds takes beside them; the same for every layer that is no larger.
pub struct DistinctRoom {
    table: CudaBuffer<u32>,
    places: CudaBuffer<u32>,
    sums: CudaBuffer<u32>,
    key: u64,
}

impl DistinctRoom {
    /// Room for `slots` slots. `key` is any number that who chooses the stream's nodes does not know; no result depends
    /// on it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or more than 2^30 slots.
    pub fn new(cuda: &Cuda, stream: &Stream, slots: usize, key: u64) -> Result<Self, CudaError> {
        let operation = "making room for distinct pairs";
        check_len(operation, &[("slots of a layer", SLOTS_MAX, slots)])?;
        let places = table_places(slots);
        Ok(Self {
            table: CudaBuffer::zeros(cuda, stream, places, operation)?,
            places: CudaBuffer::zeros(cuda, stream, slots, operation)?,
            sums: CudaBuffer::zeros(cuda, stream, tiles(slots), operation)?,
            key,
        })
    }

    /// For how many slots it is enough.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.places.len()
    }
}

/// Places of a hash table of which at most half are ever taken.
fn table_places(slots: usize) -> usize {
    (2 * slots).next_power_of_two().max(64)
}

/// Blocks that number so many slots.
fn tiles(slots: usize) -> usize {
    slots.div_ceil(TILE_SLOTS as usize)
}

/// Lists the distinct pairs of the filled ones of `slots`, which belong to `seeds`, in order of first appearance in
/// `pairs`, and notes for each slot in `next` which of them is its own; all ones in empty slots, and nothing in slots
/// that no seed has. Everything belongs to `stream`. Does not wait.
///
/// # Errors
/// Room that does not fit, a buffer of another stream, or the driver's.
pub fn further(
    (cuda, stream): (&Cuda, &Stream),
    (seeds, slots): (&GpuSeeds, &GpuSlots),
    room: &mut DistinctRoom,
    next: &mut CudaBuffer<u32>,
    pairs: &mut GpuSeeds,
) -> Result<(), CudaError> {
    let operation = "listing distinct pairs";
    let all = product(operation, "slots", &[seeds.most(), slots.fanout()])?;
    check_len(
        operation,
        &[
            ("neighbors", slots.neighbors.len(), all),
            ("times", slots.times.len(), all),
            ("room for distinct pairs", room.slots(), all),
            ("numbers of seeds", next.len(), all),
            ("room for seeds", pairs.most(), all),
        ],
    )?;
    // No more of the table than these slots need.
    let places = table_places(all);
    room.table.fill_front_words(places, NO_SLOT, operation)?;
    let last = to_u32(operation, "places", places - 1)?;
    let most = cuda.gpu().multiprocessors.saturating_mul(BLOCKS);
    let each = Grid::of(all as u64, TILE_THREADS, most);
    let tile = Grid::of(tiles(all) as u64 * u64::from(TILE_THREADS), TILE_THREADS, most);
    let sizes = || format!("{all} slots");
    let begin = || {
        let mut launch = Launch::new(cuda, stream, operation);
        let pairs = argument(&mut launch, seeds, slots);
        launch.number(pairs)
    };

    let insert = begin().number(room.key).writes(&mut room.table).number(last).writes(&mut room.places);
    // SAFETY: there are no more seeds than their room, so no more slots than `all`, for which everything has room; of
    // the table's places at most half are taken, so every search ends. Numbers in table and places are of slots and
    // places, as these kernels wrote them.
    unsafe { insert.run("distinct_insert", each, sizes) }?;
    let count = begin().reads(&room.table).reads(&room.places).writes(&mut room.sums);
    // SAFETY: as above; there is a sum for each tile.
    unsafe { count.run("distinct_count", tile, sizes) }?;
    let number = begin()
        .reads(&room.table)
        .reads(&room.places)
        .reads(&room.sums)
        .writes(next)
        .writes(&mut pairs.nodes)
        .writes(&mut pairs.times)
        .writes(&mut pairs.count);
    // SAFETY: as above; there are no more distinct pairs than slots.
    unsafe { number.run("distinct_number", tile, sizes) }?;
    let spread = begin().reads(&room.table).reads(&room.places).writes(next);
    // SAFETY: as above.
    unsafe { spread.run("distinct_spread", each, sizes) }
}

fn argument<'a>(launch: &mut Launch<'a>, seeds: &'a GpuSeeds, slots: &'a GpuSlots) -> Pairs {
    Pairs {
        neighbors: launch.reading(&slots.neighbors),
        times: launch.reading(&slots.times),
        seeds: launch.reading(&seeds.count),
        fanout: u32::try_from(slots.fanout()).unwrap_or(u32::MAX),
        unused: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_never_more_than_half_full_and_its_length_a_power_of_two() {
        for slots in [0, 1, 31, 32, 33, 18_000, 180_000, SLOTS_MAX] {
            let places = table_places(slots);
            assert!(
                places >= 2 * slots && places.is_power_of_two() && places <= 1 << 31,
                "{slots}: {places}"
            );
            assert!(tiles(slots) * TILE_SLOTS as usize >= slots);
        }
    }
}
