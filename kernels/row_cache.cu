// Finds the rows of a round in the row cache: for each id its slot or ROW_CACHE_MISS, and a list of the places in the
// round of those that were missed, ascending. The table must not change meanwhile. No atomics: the same table and ids
// give the same bytes, with any grid.
//
// Two launches, one after the other, blocks of 256 threads, a tile of 256 ids at a time; up to ceil(count / 256) blocks
// have something to do. `tile_misses` holds a number for each tile in between.
//
//   row_cache_find      slots[i], and how many misses each tile has
//   row_cache_misses    misses[..*miss_count]: a tile's begin after those of all tiles before it, which each block sums
//                       for itself: at most some hundred numbers, which it reads together
//
// Registers (nvcc 13, none spilled): row_cache_find 16 on sm_80 and 24 on sm_90, row_cache_misses 30 on both.
#include "row_cache.cuh"

#define ROW_CACHE_TILE 256u

extern "C" __global__ void __launch_bounds__(256) row_cache_find(
    RowCacheTable table, const u64* ids, u32 count, u32* slots, u32* tile_misses) {
    u32 tiles = count / ROW_CACHE_TILE + (count % ROW_CACHE_TILE != 0);
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u32 i = tile * ROW_CACHE_TILE + threadIdx.x;
        u32 slot = 0;
        if (i < count) {
            slot = row_cache_slot(table, ids[i]);
            slots[i] = slot;
        }
        u32 misses = (u32)__syncthreads_count(slot == ROW_CACHE_MISS);
        if (threadIdx.x == 0) {
            tile_misses[tile] = misses;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) row_cache_misses(
    const u32* slots, u32 count, const u32* tile_misses, u32* misses, u32* miss_count) {
    __shared__ u32 of_warp[ROW_CACHE_TILE / 32];
    u32 tiles = count / ROW_CACHE_TILE + (count % ROW_CACHE_TILE != 0);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (tiles == 0 && blockIdx.x == 0 && threadIdx.x == 0) {
        *miss_count = 0;
    }
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        // Misses of all tiles before this one.
        u32 sum = 0;
        for (u32 before = threadIdx.x; before < tile; before += ROW_CACHE_TILE) {
            sum += tile_misses[before];
        }
        for (u32 distance = 16; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
        }
        if (lane == 0) {
            of_warp[warp] = sum;
        }
        __syncthreads();
        u32 begin = 0;
        for (u32 w = 0; w < ROW_CACHE_TILE / 32; w++) {
            begin += of_warp[w];
        }
        __syncthreads();
        // Misses of this tile before this thread's.
        u32 i = tile * ROW_CACHE_TILE + threadIdx.x;
        bool missed = i < count && slots[i] == ROW_CACHE_MISS;
        u32 votes = __ballot_sync(0xFFFFFFFFu, missed);
        if (lane == 0) {
            of_warp[warp] = (u32)__popc(votes);
        }
        __syncthreads();
        u32 place = begin + (u32)__popc(votes & ((1u << lane) - 1));
        for (u32 w = 0; w < warp; w++) {
            place += of_warp[w];
        }
        if (missed) {
            misses[place] = i;
        }
        if (tile + 1 == tiles && threadIdx.x == 0) {
            *miss_count = begin + tile_misses[tile];
        }
        __syncthreads();
    }
}
