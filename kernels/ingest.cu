// Ingest of a batch: one upload, one launch. What goes where was decided by the CPU from the plan by which it
// filled its own store (src/graph/mirror); every thread puts one element in its place, and no two the same.
//
// The tables are as large as the patch states before the launch, new elements of `nodes` zero. Samplers of the same
// stream before it see the graph without the batch, those behind it with all of it.
//
// Launch: blocks of 256 threads; grid: elements / 256 rounded up, at least 1, or any less. `upload` is memory of the
// GPU or mapped memory of the host, which saves the copy: every byte of it is read once, in order.
//
// Registers by nvcc 13.0 -Xptxas -v, sm_80/sm_90: ingest 26/32. No spills.
#include "ingest.cuh"

extern "C" __global__ void __launch_bounds__(256) ingest(const u8* bytes, u64 entry_count, u64 block_count,
                                                         u64 node_count, Entry* const* pages, u32 page_log2,
                                                         Block* blocks, NodeBlocks* nodes) {
    Upload upload(bytes, entry_count, block_count, node_count);
    for (u64 i = THREAD_OF_GRID; i < entry_count + block_count + node_count; i += THREADS_OF_GRID) {
        ingest_one(upload, entry_count, block_count, i, pages, page_log2, blocks, nodes);
    }
}
