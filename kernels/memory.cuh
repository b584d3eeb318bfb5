// What a TGN remembers of each node, as tables on a card.
#ifndef EVERGRAPH_MEMORY_CUH
#define EVERGRAPH_MEMORY_CUH

#include "sums.cuh"

// When a node was last updated that never was.
#define NEVER ((i64)(1ULL << 63))

// Rows of `width` values by node. What waits for a node is known to the host alone: rows and times of mails mean
// something where it says so.
struct NodeTable {
    float* memory;
    float* mails;
    // When a node's memory was last updated, and when the event of its mail was.
    i64* updated;
    i64* mail_times;
    u64 nodes;
    u32 width;
    u32 unused;
};

// Events of a batch.
struct Events {
    const u32* src;
    const u32* dst;
    const i64* times;
    u32 count;
    u32 unused;
};

// What is known of the edges of messages: row rows[i] of `table` for message i, zeros where there is none.
struct MailFeatures {
    const float* table;
    const u32* rows;
    u32 count;
    u32 columns;
};

// later - earlier in f32, whichever is later; what exceeds an i64 counts as the nearest one.
FN float between(i64 later, i64 earlier) { return later < earlier ? -since(earlier, later) : since(later, earlier); }

#endif
