// The fused pass of temporal attention over the slots of a seed, a warp to a seed. The twin is src/nn/cpu/attention.rs.
//
// A lane holds C columns of every row: lane, lane + 32, and so on. The rows [node row; edge row; phi(delta)] are never
// written anywhere: they are read in place, each once, and phi is computed where it is used, in both directions.
#ifndef EVERGRAPH_ATTENTION_CUH
#define EVERGRAPH_ATTENTION_CUH

#include "math.cuh"
#include "mask.cuh"

#define NO_ROW 0xFFFFFFFFu
// Slots per seed at most: a lane keeps the score of one slot.
#define SLOTS_MAX 32u

struct AttentionShape {
    u32 seeds;
    u32 slots;
    u32 heads;
    // Columns of the node row, the edge row and the encoding, and of all three up to a multiple of 16: of u, y and dy.
    u32 node;
    u32 edge;
    u32 time;
    u32 padded;

    FN u32 width() const { return node + edge + time; }
};

// Where rows come from. `queries` (row of u per seed) and `edge_slots` (row of edges per slot) may be null: row i for
// i. A slot is empty whose row of nodes or of edges there is not; a query beyond the last row of u is the last.
struct SlotSource {
    const u32* queries;
    const u32* slots;
    const u32* edge_slots;
    const float* nodes;
    const float* edges;
    const float* deltas;
    const float* w;
    const float* b;
    // Rows of u, of nodes and of edges.
    u32 query_rows;
    u32 node_rows;
    u32 edge_rows;
    u32 unused;

    FN u64 query(u64 seed) const { return min64(queries == nullptr ? seed : queries[seed], query_rows - 1); }
    FN u64 edge_row(u64 at) const { return edge_slots == nullptr ? at : edge_slots[at]; }
};

// This lane's columns of the row in slot `at`, one that is occupied.
template <u32 C>
FN void load_row(const AttentionShape& shape, const SlotSource& source, u64 at, float (&row)[C]) {
    const float* node = source.nodes + (u64)source.slots[at] * shape.node;
    const float* edge = source.edges + source.edge_row(at) * shape.edge;
    float delta = source.deltas[at];
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        u32 column = (threadIdx.x & 31) + 32 * c;
        float value = 0.0f;
        if (column < shape.node) {
            value = node[column];
        } else if (column < shape.node + shape.edge) {
            value = edge[column - shape.node];
        } else if (column < shape.width()) {
            u32 j = column - shape.node - shape.edge;
            value = encoded(source.w[j], delta, source.b[j]);
        }
        row[c] = value;
    }
}

template <u32 C>
FN void copy_columns(float (&to)[C], const float (&from)[C]) {
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        to[c] = from[c];
    }
}

// This lane's columns of a block of `padded` columns.
template <u32 C>
FN void load_block(const AttentionShape& shape, const float* block, float (&columns)[C]) {
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        u32 column = (threadIdx.x & 31) + 32 * c;
        columns[c] = column < shape.padded ? block[column] : 0.0f;
    }
}

template <u32 C>
FN void store_block(const AttentionShape& shape, float* block, const float (&columns)[C]) {
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        u32 column = (threadIdx.x & 31) + 32 * c;
        if (column < shape.padded) {
            put(block + column, columns[c]);
        }
    }
}

template <u32 C>
FN float dot(const float (&a)[C], const float (&b)[C]) {
    float sum = 0.0f;
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        sum = fmaf(a[c], b[c], sum);
    }
    return warp_sum(sum);
}

// The occupied slots of a seed, as bits.
FN u32 occupied_slots(const AttentionShape& shape, const SlotSource& source, u64 seed) {
    u32 lane = threadIdx.x & 31;
    u64 at = seed * shape.slots + lane;
    bool occupied = lane < shape.slots && source.slots[at] < source.node_rows &&
                    (shape.edge == 0 || source.edge_row(at) < source.edge_rows);
    return __ballot_sync(0xFFFFFFFFu, occupied);
}

// The first slot whose bit is set, of one at least.
FN u32 first_slot(u32 bits) { return (u32)__ffs((int)bits) - 1; }

// This lane's columns of the row in the first slot of a seed whose bit is set, if there is one.
template <u32 C>
FN void load_first(const AttentionShape& shape, const SlotSource& source, u64 seed, u32 bits, float (&row)[C]) {
    if (bits != 0) {
        load_row<C>(shape, source, seed * shape.slots + first_slot(bits), row);
    }
}

// One seed forward: y [H, padded] and weights [H, slots] of it. The softmax runs along: sums so far count relative to
// the highest score so far.
template <u32 H, u32 C>
FN void attend(const AttentionShape& shape, const SlotSource& source, const Mask& mask, const float* u, u64 seed,
               float* y, float* weights) {
    u32 lane = threadIdx.x & 31;
    u64 query = source.query(seed);
    float asked[H][C], sums[H][C] = {}, top[H], total[H] = {}, score[H] = {};
#pragma unroll
    for (u32 h = 0; h < H; h++) {
        top[h] = -3.0e38f;
        load_block<C>(shape, u + (query * H + h) * shape.padded, asked[h]);
    }
    u32 occupied = occupied_slots(shape, source, seed);
    float next[C] = {};
    load_first<C>(shape, source, seed, occupied, next);
    for (u32 left = occupied; left != 0;) {
        u32 slot = first_slot(left);
        float row[C];
        copy_columns<C>(row, next);
        left &= left - 1;
        // The row behind this one comes while this one is computed with.
        load_first<C>(shape, source, seed, left, next);
#pragma unroll
        for (u32 h = 0; h < H; h++) {
            float own = dot<C>(asked[h], row);
            score[h] = lane == slot ? own : score[h];
            float higher = own > top[h] ? own : top[h];
            float shrink = exponential(top[h] - higher);
            float share = exponential(own - higher);
            top[h] = higher;
            total[h] = fmaf(total[h], shrink, share);
            share *= mask.factor((seed * H + h) * shape.slots + slot);
#pragma unroll
            for (u32 c = 0; c < C; c++) {
                sums[h][c] = fmaf(sums[h][c], shrink, share * row[c]);
            }
        }
    }
#pragma unroll
    for (u32 h = 0; h < H; h++) {
        float scale = occupied == 0 ? 0.0f : 1.0f / total[h];
#pragma unroll
        for (u32 c = 0; c < C; c++) {
            sums[h][c] *= scale;
        }
        store_block<C>(shape, y + (seed * H + h) * shape.padded, sums[h]);
        if (lane < shape.slots) {
            float weight = (occupied >> lane & 1) != 0 ? exponential(score[h] - top[h]) * scale : 0.0f;
            put(weights + (seed * H + h) * shape.slots + lane, weight);
        }
    }
}

// Which columns of a slot row get a gradient, side by side: the node row or none, the encoding or none.
struct SlotColumns {
    u32 node;
    u32 time;

    FN u32 width() const { return node + time; }
};

template <u32 C>
FN void store_slot(const AttentionShape& shape, const SlotColumns& columns, float* slot, const float (&dx)[C]) {
    u32 time_begin = shape.node + shape.edge;
#pragma unroll
    for (u32 c = 0; c < C; c++) {
        u32 column = (threadIdx.x & 31) + 32 * c;
        if (column < columns.node) {
            put(slot + column, dx[c]);
        } else if (columns.time > 0 && column >= time_begin && column < shape.width()) {
            put(slot + columns.node + column - time_begin, dx[c]);
        }
    }
}

// One seed backward: du [H, padded], and dx [slots, columns] of its slot rows, given dy and what the forward left. The
// mean of the scores' gradients under the weights is dy . y, so that rows are read once:
//   g_k = f_k dy . x_k     ds_k = a_k (g_k - dy . y)     du = sum_k ds_k x_k     dx_k = sum_h f_k a_k dy + ds_k u
template <u32 H, u32 C>
FN void attend_backward(const AttentionShape& shape, const SlotSource& source, const Mask& mask,
                        const SlotColumns& columns, const float* u, const float* y, const float* weights,
                        const float* dy, u64 seed, float* du, float* dx) {
    u64 query = source.query(seed);
    float asked[H][C], given[H][C], found[H][C] = {}, mean[H];
#pragma unroll
    for (u32 h = 0; h < H; h++) {
        load_block<C>(shape, u + (query * H + h) * shape.padded, asked[h]);
        load_block<C>(shape, dy + (seed * H + h) * shape.padded, given[h]);
        float result[C];
        load_block<C>(shape, y + (seed * H + h) * shape.padded, result);
        mean[h] = dot<C>(given[h], result);
    }
    u32 occupied = occupied_slots(shape, source, seed);
    float next[C] = {};
    load_first<C>(shape, source, seed, occupied, next);
    for (u32 slot = 0, left = occupied; slot < shape.slots; slot++) {
        u64 at = seed * shape.slots + slot;
        float back[C] = {};
        if ((occupied >> slot & 1) != 0) {
            float row[C];
            copy_columns<C>(row, next);
            left &= left - 1;
            // As forward.
            load_first<C>(shape, source, seed, left, next);
#pragma unroll
            for (u32 h = 0; h < H; h++) {
                u64 index = (seed * H + h) * shape.slots + slot;
                float factor = mask.factor(index);
                float weight = weights[index];
                float slope = weight * (dot<C>(given[h], row) * factor - mean[h]);
                weight *= factor;
#pragma unroll
                for (u32 c = 0; c < C; c++) {
                    found[h][c] = fmaf(slope, row[c], found[h][c]);
                    back[c] = fmaf(weight, given[h][c], fmaf(slope, asked[h][c], back[c]));
                }
            }
        }
        store_slot<C>(shape, columns, dx + at * columns.width(), back);
    }
#pragma unroll
    for (u32 h = 0; h < H; h++) {
        store_block<C>(shape, du + (seed * H + h) * shape.padded, found[h]);
    }
}

#endif
