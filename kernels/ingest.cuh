// An upload that brings a GPU's graph from one state to the next, as src/graph/mirror/patch.rs writes it:
//
//   entries  16 bytes each   neighbor u32 | time u32 | edge u32 | slot u32: page and place in the page
//   blocks   32 bytes each   descriptions
//   nodes    16 bytes each   node u32 | first u32 | count u32 | 0
//   indexes   4 bytes each   where each of the blocks stands in the table
//
// one after the other, without gaps. No place is named twice.
#ifndef EVERGRAPH_INGEST_CUH
#define EVERGRAPH_INGEST_CUH

#include "graph.cuh"

// As aligned as it is long, so that a thread reads it at once.
struct alignas(16) PlacedEntry {
    u32 neighbor;
    u32 time;
    u32 edge;
    u32 slot;
};

struct PlacedNode {
    u32 node;
    NodeBlocks blocks;
    u32 unused;
};

// The parts of an upload at `bytes`, which begins at a multiple of 32.
struct Upload {
    const PlacedEntry* entries;
    const Block* blocks;
    const PlacedNode* nodes;
    const u32* indexes;

    FN Upload(const u8* bytes, u64 entry_count, u64 block_count, u64 node_count) {
        entries = (const PlacedEntry*)bytes;
        blocks = (const Block*)(entries + entry_count);
        nodes = (const PlacedNode*)(blocks + block_count);
        indexes = (const u32*)(nodes + node_count);
    }
};

// Puts element i of the upload where it belongs, counted through entries, blocks and nodes.
FN void ingest_one(const Upload& upload, u64 entry_count, u64 block_count, u64 i, Entry* const* pages, u32 page_log2,
                   Block* blocks, NodeBlocks* nodes) {
    if (i < entry_count) {
        PlacedEntry placed = upload.entries[i];
        Entry entry = {placed.neighbor, placed.time, placed.edge};
        put(pages[placed.slot >> page_log2] + (placed.slot & ((1u << page_log2) - 1)), entry);
    } else if (i - entry_count < block_count) {
        u64 block = i - entry_count;
        put(blocks + upload.indexes[block], upload.blocks[block]);
    } else {
        PlacedNode placed = upload.nodes[i - entry_count - block_count];
        put(nodes + placed.node, placed.blocks);
    }
}

#endif
