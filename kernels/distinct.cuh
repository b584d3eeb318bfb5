// The seeds of a further layer: the distinct (neighbor, time) pairs of a layer's filled slots, numbered in order of
// first appearance, as src/sampler/layers.rs does it. The order in which threads come does not matter: a pair's place
// in the hash table ends with the least slot that has it, and numbers count such slots.
#ifndef EVERGRAPH_DISTINCT_CUH
#define EVERGRAPH_DISTINCT_CUH

#include "graph.cuh"
#include "rng.cuh"

// Slots that a block numbers together, in strips of its threads.
#define TILE_THREADS 256u
#define TILE_STRIPS 4u
#define TILE_SLOTS (TILE_THREADS * TILE_STRIPS)

#define NO_SLOT 0xFFFFFFFFu
#define NO_SEED 0xFFFFFFFFu

// The filled and empty slots of a layer.
struct Pairs {
    const u32* neighbors;
    const i64* times;
    // Seeds of the layer, and slots of each.
    const u32* seeds;
    u32 fanout;
    u32 unused;

    FN u32 count() const { return *seeds * fanout; }
    FN bool same(u32 a, u32 b) const { return neighbors[a] == neighbors[b] && times[a] == times[b]; }
};

// Puts `slot`, a filled one, into a table of room + 1 places, a power of two, of which at most half are ever taken;
// returns where. The table was filled with NO_SLOT.
FN u32 insert_pair(u32* table, u32 room, u64 key, const Pairs& pairs, u32 slot) {
    u32 place = (u32)rng_absorb(key ^ pairs.neighbors[slot], (u64)pairs.times[slot]) & room;
    for (;;) {
        u32 holder = atomicCAS(table + place, NO_SLOT, slot);
        if (holder == NO_SLOT) {
            return place;
        }
        if (pairs.same(holder, slot)) {
            atomicMin(table + place, slot);
            return place;
        }
        place = (place + 1) & room;
    }
}

// Whether `slot` is the first of its pair.
FN bool is_first(const u32* table, const u32* places, u32 slot, u32 slots) {
    return slot < slots && places[slot] != NO_SLOT && table[places[slot]] == slot;
}

// For a block of TILE_THREADS threads that all come: the sum of `value` over the threads before this one, and over all.
FN u32 sum_before(u32 value, u32& all) {
    __shared__ u32 of_warp[TILE_THREADS / 32];
    u32 lane = threadIdx.x & 31;
    u32 sum = value;
    for (u32 distance = 1; distance < 32; distance *= 2) {
        u32 other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    if (lane == 31) {
        of_warp[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    u32 before = 0;
    all = 0;
    for (u32 warp = 0; warp < TILE_THREADS / 32; warp++) {
        before += warp < threadIdx.x / 32 ? of_warp[warp] : 0;
        all += of_warp[warp];
    }
    __syncthreads();
    return before + sum - value;
}

// How many slots of a tile are the first of their pairs.
FN void count_tile(const u32* table, const u32* places, u32 slots, u32 tile, u32* sums) {
    u32 firsts = 0;
    for (u32 strip = 0; strip < TILE_STRIPS; strip++) {
        firsts += is_first(table, places, tile * TILE_SLOTS + strip * TILE_THREADS + threadIdx.x, slots);
    }
    u32 all;
    sum_before(firsts, all);
    if (threadIdx.x == 0) {
        put(sums + tile, all);
    }
}

// Numbers the first slots of a tile, and writes their pairs as seeds.
FN void number_tile(const u32* table, const u32* places, const Pairs& pairs, u32 slots, u32 tile, const u32* sums,
                    u32* numbers, u32* nodes, i64* times, u32* seed_count) {
    u32 part = 0;
    for (u32 earlier = threadIdx.x; earlier < tile; earlier += TILE_THREADS) {
        part += sums[earlier];
    }
    u32 number;
    sum_before(part, number);
    for (u32 strip = 0; strip < TILE_STRIPS; strip++) {
        u32 slot = tile * TILE_SLOTS + strip * TILE_THREADS + threadIdx.x;
        bool first = is_first(table, places, slot, slots);
        u32 all;
        u32 before = sum_before(first, all);
        if (first) {
            put(numbers + slot, number + before);
            put(nodes + number + before, pairs.neighbors[slot]);
            put(times + number + before, pairs.times[slot]);
        }
        number += all;
    }
    if (tile == (slots - 1) / TILE_SLOTS && threadIdx.x == 0) {
        put(seed_count, number);
    }
}

#endif
