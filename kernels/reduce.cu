// Sums and means over groups of rows that stand together, what their gradients become, and rows of a table that are
// cleared. The twins are src/nn/cpu/segment.rs and broadcast.rs.
//
//   reduce_slots  out[g] = sum of the first counts[g] of the rows g slots.., or their mean; zeros where there are none
//   spread_slots  dx[g slots + k] = d[g], or d[g] / counts[g], for k < counts[g]; zeros for the other rows
//   clear_rows    d[rows[i]] = 0
//   clear_empty   d[i] = 0 where slots[i] is all ones: no row
//
// x and dx f32 [groups slots, columns], d and out f32 [groups, columns], counts u32 [groups]: more than `slots` count
// as `slots`. d of the last two: rows of `columns` values; a row that there is not, of `limit`, is left out.
//
// Launch: blocks of 256 threads; any grid. reduce_slots and spread_slots: a thread to a column of a group. The others:
// a warp to a row. Every value is read once or written once, neighbors by neighbors: all are bound by memory.
//
// A group is summed in the order of its rows and all roundings are the CPU's: the same bits.
//
// Registers by NVRTC 13.0, sm_80/sm_90: clear_empty 27/27, clear_rows 27/27, reduce_slots 28/30,
// spread_slots 32/32. No spills.
#include "math.cuh"

extern "C" __global__ void __launch_bounds__(256) reduce_slots(const u32* counts, u64 groups, u32 slots, const float* x,
                                                               u32 columns, u32 mean, float* out) {
    for (u64 i = THREAD_OF_GRID; i < groups * columns; i += THREADS_OF_GRID) {
        u64 group = i / columns;
        u32 count = min32(counts[group], slots);
        const float* row = x + group * slots * columns + i % columns;
        float sum = 0.0f;
#pragma unroll 4
        for (u32 k = 0; k < count; k++) {
            sum = ADD(sum, row[(u64)k * columns]);
        }
        put(out + i, mean != 0 && count > 0 ? sum / (float)count : sum);
    }
}

extern "C" __global__ void __launch_bounds__(256) spread_slots(const u32* counts, u64 groups, u32 slots, const float* d,
                                                               u32 columns, u32 mean, float* dx) {
    for (u64 i = THREAD_OF_GRID; i < groups * columns; i += THREADS_OF_GRID) {
        u64 group = i / columns;
        u32 count = min32(counts[group], slots);
        float share = mean != 0 && count > 0 ? 1.0f / (float)count : 1.0f;
        float given = MUL(d[i], share);
        float* row = dx + group * slots * columns + i % columns;
        for (u32 k = 0; k < slots; k++) {
            put(row + (u64)k * columns, k < count ? given : 0.0f);
        }
    }
}

FN void clear_row(float* d, u64 row, u32 columns) {
    for (u32 c = threadIdx.x & 31; c < columns; c += 32) {
        put(d + row * columns + c, 0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(256) clear_rows(const u32* rows, u64 count, u32 columns, u64 limit,
                                                             float* d) {
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        if (rows[i] < limit) {
            clear_row(d, rows[i], columns);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) clear_empty(const u32* slots, u64 count, u32 columns, float* d) {
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        if (slots[i] == 0xFFFFFFFFu) {
            clear_row(d, i, columns);
        }
    }
}
