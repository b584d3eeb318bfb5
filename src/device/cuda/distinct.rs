//! From the slots of a layer to the seeds of the next, on a GPU: [`further`]. The twin is `sampler::Layers`; both give
//! the same pairs in the same order. The host does not know how many there are. Pairs of other things are listed in the
//! same way ([`list_distinct`]).

use super::context::Cuda;
use super::declare::kernels;
use super::error::CudaError;
use super::launch::{Launch, StreamContext, check_len, product};
use super::memory::CudaBuffer;
use super::seeds::{GpuSeeds, GpuSlots};
use super::stream::Stream;
use super::twins::{Pairs, TILE_SLOTS, TILE_THREADS};

/// Slots of a layer that has a further one: its table has twice as many places.
const SLOTS_MAX: usize = 1 << 30;
/// No slot, in a place of the table.
const NO_SLOT: u32 = u32::MAX;
const LISTING: &str = "listing distinct pairs";

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

/// Slots, and the pair in each. They stand in groups of `fanout`, as those of a seed do; how many groups there are is
/// known on the GPU only.
#[derive(Clone, Copy)]
pub struct SlotPairs<'a> {
    /// The first of a pair, all ones in empty slots.
    pub first: &'a CudaBuffer<u32>,
    /// The second.
    pub second: &'a CudaBuffer<i64>,
    /// How many groups there are, one number.
    pub groups: &'a CudaBuffer<u32>,
    /// How many there may be.
    pub most: usize,
    /// Slots of a group.
    pub fanout: usize,
}

type Numbers = CudaBuffer<u32>;

// There are no more seeds than their room, so no more slots than `count`, for which everything has room; of the table's
// places at most half are taken, so every search ends. Numbers in table and places are of slots and places, as the
// kernels before wrote them.
kernels! {
    /// Puts the pairs of all slots into the table, which is empty, and notes the place of each.
    fn insert = distinct_insert(
        slots: SlotPairs<'_>, count: usize, key: u64, table: (&mut Numbers, usize), places: &mut Numbers,
    ) {
        let operation = LISTING;
        pass built(Pairs, |launch| argument(&mut launch, slots)), u64(key), write(table.0, table.1, "the table"),
            u32(table.1 - 1, "places"), write(places, count, "room for distinct pairs");
        grid count, TILE_THREADS;
        safe "See above the declarations.";
    }

    /// Counts the first slots of pairs, tile by tile.
    fn count_first = distinct_count(
        slots: SlotPairs<'_>, count: usize, (table, places): (&Numbers, &Numbers), sums: &mut Numbers,
    ) {
        let operation = LISTING;
        pass built(Pairs, |launch| argument(&mut launch, slots)), read(table, table_places(count), "the table"),
            read(places, count, "places"), write(sums, tiles(count), "a sum for each tile");
        grid tiles(count) * TILE_THREADS as usize, TILE_THREADS;
        safe "See above the declarations.";
    }

    /// Numbers the pairs, in order of their first slots, and lists them.
    fn number = distinct_number(
        slots: SlotPairs<'_>, count: usize, (table, places, sums): (&Numbers, &Numbers, &Numbers), next: &mut Numbers,
        pairs: &mut GpuSeeds,
    ) {
        let operation = LISTING;
        pass built(Pairs, |launch| argument(&mut launch, slots)), read(table, table_places(count), "the table"),
            read(places, count, "places"), read(sums, tiles(count), "sums"), write(next, count, "numbers of seeds"),
            write(&mut pairs.nodes, count, "room for seeds"), write(&mut pairs.times, count, "room for seeds"),
            write(&mut pairs.count, 1, "their number");
        grid tiles(count) * TILE_THREADS as usize, TILE_THREADS;
        safe "See above the declarations; there are no more distinct pairs than slots.";
    }

    /// Gives every slot the number of its pair.
    fn spread = distinct_spread(
        slots: SlotPairs<'_>, count: usize, (table, places): (&Numbers, &Numbers), next: &mut Numbers,
    ) {
        let operation = LISTING;
        pass built(Pairs, |launch| argument(&mut launch, slots)), read(table, table_places(count), "the table"),
            read(places, count, "places"), write(next, count, "numbers of seeds");
        grid count, TILE_THREADS;
        safe "See above the declarations.";
    }
}

/// Lists the distinct (neighbor, time) pairs of the filled ones of `slots`, which belong to `seeds`; see
/// [`list_distinct`].
///
/// # Errors
/// As for [`list_distinct`].
pub fn further(
    context: StreamContext<'_>,
    (seeds, slots): (&GpuSeeds, &GpuSlots),
    room: &mut DistinctRoom,
    next: &mut CudaBuffer<u32>,
    pairs: &mut GpuSeeds,
) -> Result<(), CudaError> {
    let (first, second, groups) = (&slots.neighbors, &slots.times, &seeds.count);
    let slots = SlotPairs { first, second, groups, most: seeds.most(), fanout: slots.fanout() };
    list_distinct(context, slots, room, next, pairs)
}

/// Lists the distinct pairs of the filled ones of `slots` in order of first appearance in `pairs`, and notes for each
/// slot in `next` which of them is its own; all ones in empty slots, and nothing in slots of groups that there are not.
/// Everything belongs to `stream`. Does not wait.
///
/// # Errors
/// Room that does not fit, a buffer of another stream, or the driver's.
pub fn list_distinct(
    context: StreamContext<'_>,
    slots: SlotPairs<'_>,
    room: &mut DistinctRoom,
    next: &mut CudaBuffer<u32>,
    pairs: &mut GpuSeeds,
) -> Result<(), CudaError> {
    let all = product(LISTING, "slots", &[slots.most, slots.fanout])?;
    let places = table_places(all);
    check_len(
        LISTING,
        &[
            ("neighbors", slots.first.len(), all),
            ("times", slots.second.len(), all),
            ("room for distinct pairs", room.slots(), all),
        ],
    )?;
    // No more of the table than these slots need.
    room.table.fill_front_words(places, NO_SLOT, LISTING)?;
    insert(context, slots, all, room.key, (&mut room.table, places), &mut room.places)?;
    count_first(context, slots, all, (&room.table, &room.places), &mut room.sums)?;
    number(context, slots, all, (&room.table, &room.places, &room.sums), next, pairs)?;
    spread(context, slots, all, (&room.table, &room.places), next)
}

fn argument<'a>(launch: &mut Launch<'a>, slots: SlotPairs<'a>) -> Pairs {
    Pairs {
        neighbors: launch.reading(slots.first),
        times: launch.reading(slots.second),
        seeds: launch.reading(slots.groups),
        fanout: u32::try_from(slots.fanout).unwrap_or(u32::MAX),
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
