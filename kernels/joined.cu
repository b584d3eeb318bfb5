// Rows joined and spread, and what is done to them value by value. The twins are src/nn/cpu/gather.rs, shape.rs,
// elementwise.rs, dropout.rs and segment.rs.
//
//   join_rows      out[i] = [part_1[list_1[i]] ; part_2[list_2[i]] ; ..]       at most ROW_PARTS parts
//   put_rows       out[rows[i]] = part[list[i]]; a row beyond `limit` is left out, and none is put twice
//   add_rows       out[i] = part[list[i]], or that and before[list[i]], with max(x, 0) of it if asked for
//   spread_rows    dx[r] (+)= sum over the users p of row r, in their order, of d[p]
//   relu_backward  d[i] = 0 where result[i] <= 0
//   drop_out       out[i] = 0 or keep x[i], by the mask of element i
//   follow_list    out[i] = list[at[i]], all ones where the list has no such entry
//
// Rows of f32, `stride` values apart; a row that a table does not have is zeros, and adds nothing. spread_rows is the
// backward of join_rows and add_rows: it turns the index around, so that no row is written by two and no atomic is
// needed; a user that there is not is left out.
//
// Launch: blocks of 256 threads; any grid. join_rows, put_rows and add_rows: a warp to a row; join_rows to each part of
// one, which then wait for memory side by side, if the grid has so many. spread_rows: a warp to 32 columns of a row,
// and a block to those of a row with more than USERS_MANY users, each warp of which sums every eighth 32 of them; where
// no row has as many (`hubs` is 0), no warp waits for the others of its block.
// relu_backward and follow_list: a thread to a value. drop_out: a thread to four values, which share a random number.
//
// Every value is read once and written once, 128 bytes per step of a warp: all are bound by memory. The sum of a row
// with very many users is bound by the latency of its loads, eight of which a warp has under way together.
//
// join_rows, put_rows, relu_backward, drop_out and, of a single addition, add_rows have the CPU's bits; sums of users
// run in another order and agree to rounding.
//
// Registers by NVRTC 13.0, sm_80/sm_90: add_rows 26/28, drop_out 26/30, follow_list 16/16, join_rows 32/32,
// put_rows 32/32, relu_backward 10/14, spread_rows 40/56. No spills.
#include "joined.cuh"
#include "mask.cuh"

// Warps of a block of spread_rows.
#define WARPS 8u

extern "C" __global__ void __launch_bounds__(256) join_rows(RowParts joined, u32 parts, u64 count, u64 out_stride,
                                                            float* out) {
    u64 warp = THREAD_OF_GRID / 32, warps = THREADS_OF_GRID / 32;
    bool apart = count * parts <= warps;
    u32 own = apart ? (u32)warp % parts : 0;
    for (u64 i = apart ? (u32)warp / parts : warp; i < count; i += warps) {
        float* to = out + i * out_stride;
#pragma unroll
        for (u32 p = 0; p < ROW_PARTS; p++) {
            const RowPart& part = joined.parts[p];
            if (p < parts && (!apart || p == own)) {
                copy_row(to, part.row(i), part.columns);
            }
            to += part.columns;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) follow_list(const u32* at, u64 count, const u32* list, u64 entries,
                                                              u32* out) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        put(out + i, at[i] < entries ? list[at[i]] : 0xFFFFFFFFu);
    }
}

extern "C" __global__ void __launch_bounds__(256) put_rows(const u32* rows, u64 count, u64 limit, RowPart part,
                                                           float* out) {
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        if (rows[i] < limit) {
            copy_row(out + (u64)rows[i] * part.columns, part.row(i), part.columns);
        }
    }
}

// `before` without columns is the result itself.
extern "C" __global__ void __launch_bounds__(256) add_rows(RowPart part, RowPart before, u64 count, u64 out_stride,
                                                           u32 into, float* out) {
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        const float* row = part.row(i);
        float* to = out + i * out_stride;
        const float* there = before.columns == 0 ? to : before.row(i);
        for (u32 c = threadIdx.x & 31; c < part.columns; c += 32) {
            float value = row == nullptr ? 0.0f : row[c];
            if ((into & ROWS_ADD) != 0) {
                float first = there == nullptr ? 0.0f : there[c];
                value = row == nullptr ? first : ADD(first, value);
            }
            put(to + c, (into & ROWS_RELU) != 0 && value < 0.0f ? 0.0f : value);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 4) spread_rows(RowUsers users, const float* d, u64 stride, u64 rows,
                                                              u32 columns, u64 out_stride, u32 fresh, u32 hubs,
                                                              float* dx) {
    __shared__ float parts[WARPS][32];
    u64 across = ((u64)columns + 31) / 32, items = rows * across;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    auto finish = [&](u64 item, float sum) {
        u64 column = item % across * 32 + lane;
        if (column < columns) {
            float* to = dx + item / across * out_stride + column;
            put(to, fresh != 0 ? sum : *to + sum);
        }
    };
    for (u64 first = (u64)blockIdx.x * WARPS; first < items; first += (u64)gridDim.x * WARPS) {
        u64 item = first + warp;
        bool many = false;
        if (item < items) {
            u32 begin = users.begin(item / across), end = users.end(item / across);
            u64 column = item % across * 32 + lane;
            many = end - begin > USERS_MANY;
            if (!many) {
                finish(item, sum_of_users(users, d, stride, column, column < columns, begin, end, 1));
            }
        }
        // A block that has no row of many users is done.
        if (hubs == 0 || __syncthreads_count(many) == 0) {
            continue;
        }
        for (item = first; item < min64(items, first + WARPS); item++) {
            u32 begin = users.begin(item / across), end = users.end(item / across);
            if (end - begin <= USERS_MANY) {
                continue;
            }
            u64 column = item % across * 32 + lane;
            u32 own = begin + 32 * warp;
            parts[warp][lane] = sum_of_users(users, d, stride, column, column < columns, own, end, WARPS);
            __syncthreads();
            if (warp == 0) {
                float sum = 0.0f;
#pragma unroll
                for (u32 part = 0; part < WARPS; part++) {
                    sum += parts[part][lane];
                }
                finish(item, sum);
            }
            // The next row writes what was just read.
            __syncthreads();
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) relu_backward(float* d, const float* result, u64 count) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        if (result[i] <= 0.0f) {
            put(d + i, 0.0f);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) drop_out(Mask mask, const float* x, u64 count, float* out) {
    for (u64 four = THREAD_OF_GRID; 4 * four < count; four += THREADS_OF_GRID) {
        for (u64 i = 4 * four; i < min64(count, 4 * four + 4); i++) {
            put(out + i, mask.apply(i, x[i]));
        }
    }
}
