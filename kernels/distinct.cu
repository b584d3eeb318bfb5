// From the slots of a layer to the seeds of the next, without the host: four kernels in this order on one stream.
//
//   distinct_insert   every filled slot into the hash table; places[slot] holds its place, NO_SLOT for an empty slot
//   distinct_count    sums[t] = first slots in tile t of TILE_SLOTS slots
//   distinct_number   numbers[slot] of first slots; nodes, times and *seed_count of the next layer
//   distinct_spread   numbers[slot] of all other slots: their pair's; NO_SEED for empty ones
//
// Shapes, for S seeds of K slots at most: table u32 [room + 1] with room + 1 >= 2 S K a power of two, filled with
// 0xFF bytes before; places, numbers, nodes u32 and times i64 [S K]; sums u32 [S K / TILE_SLOTS rounded up]. S K <
// 2^31. How many seeds the layer has is read from `pairs.seeds`. `key` is any number that who chooses the stream's
// nodes does not know; the result does not depend on it.
//
// Launch: blocks of 256 threads, exactly; grid: any, S K / TILE_SLOTS rounded up does it in one go.
//
// Registers by nvcc 13.0 -Xptxas -v, sm_80/sm_90: distinct_count 20/27, distinct_insert 22/26, distinct_number 32/32,
// distinct_spread 12/16. No spills.
#include "distinct.cuh"

extern "C" __global__ void __launch_bounds__(256) distinct_insert(Pairs pairs, u64 key, u32* table, u32 room,
                                                                  u32* places) {
    u32 slots = pairs.count();
    for (u64 slot = THREAD_OF_GRID; slot < slots; slot += THREADS_OF_GRID) {
        bool filled = pairs.neighbors[slot] != NO_NODE;
        put(places + slot, filled ? insert_pair(table, room, key, pairs, (u32)slot) : NO_SLOT);
    }
}

extern "C" __global__ void __launch_bounds__(256) distinct_count(Pairs pairs, const u32* table, const u32* places,
                                                                 u32* sums) {
    u32 slots = pairs.count();
    for (u32 tile = blockIdx.x; (u64)tile * TILE_SLOTS < slots; tile += gridDim.x) {
        count_tile(table, places, slots, tile, sums);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    distinct_number(Pairs pairs, const u32* table, const u32* places, const u32* sums, u32* numbers, u32* nodes,
                    i64* times, u32* seed_count) {
    u32 slots = pairs.count();
    if (slots == 0 && THREAD_OF_GRID == 0) {
        put(seed_count, 0u);
    }
    for (u32 tile = blockIdx.x; (u64)tile * TILE_SLOTS < slots; tile += gridDim.x) {
        number_tile(table, places, pairs, slots, tile, sums, numbers, nodes, times, seed_count);
    }
}

extern "C" __global__ void __launch_bounds__(256) distinct_spread(Pairs pairs, const u32* table, const u32* places,
                                                                  u32* numbers) {
    u32 slots = pairs.count();
    for (u64 slot = THREAD_OF_GRID; slot < slots; slot += THREADS_OF_GRID) {
        if (places[slot] == NO_SLOT) {
            put(numbers + slot, NO_SEED);
        } else if (table[places[slot]] != slot) {
            // Numbers of first slots are final, and the only ones read.
            put(numbers + slot, numbers[table[places[slot]]]);
        }
    }
}
