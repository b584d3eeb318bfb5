// What a neighbor's slot holds, put together in one pass; the twin is src/nn/cpu/slot_rows.rs.
//
//   out[i] = [nodes[node[i]] ; edges[edge[i]] ; cos(deltas[i] w + b)]        zeros where the slot is empty
//
// nodes, edges: tables and lists as in joined.cuh; a slot is empty where its node row is none of the table's, and then
// its edge may be any number. deltas f32 [count], w and b f32 [time], out f32 [count, width], width being the columns
// of all three.
//
// Launch: blocks of 256 threads, a warp to a slot; any grid. Rows are read and written once, 128 bytes per step of a
// warp: bound by memory. Bit for bit as the CPU with fused multiply-add.
//
// Registers by NVRTC 13.0, sm_80/sm_90: slot_rows 32/32. No spills.
#include "joined.cuh"

extern "C" __global__ void __launch_bounds__(256) slot_rows(RowPart nodes, RowPart edges, const float* deltas,
                                                            const float* w, const float* b, u32 time, u64 count,
                                                            float* out) {
    u32 lane = threadIdx.x & 31, rows = nodes.columns + edges.columns;
    for (u64 i = THREAD_OF_GRID / 32; i < count; i += THREADS_OF_GRID / 32) {
        float* to = out + i * ((u64)rows + time);
        const float* node = nodes.row(i);
        const float* edge = node == nullptr ? nullptr : edges.row(i);
        copy_row(to, node, nodes.columns);
        copy_row(to + nodes.columns, edge, edges.columns);
        for (u32 c = lane; c < time; c += 32) {
            put(to + rows + c, node == nullptr ? 0.0f : encoded(w[c], deltas[i], b[c]));
        }
    }
}
