// The temporal graph as a GPU sees it, written by src/graph/mirror and read by sample.cu.
//
//   nodes[n]    8 bytes   first u32, count u32: the blocks of node n are blocks[first .. first + count], ascending
//   blocks[b]  32 bytes   start i64 | base_edge u64 | page u32 | before u32 | reach u32 | place u16 | form u16
//   pages[p]    8 bytes   address of page p: memory of the GPU, or mapped memory of the host
//   a page                up to 65,536 units of 12 bytes: neighbor u32 | time u32 | edge u32
//
// A block is consecutive edges of its node in order of (time, edge id). Entry i of it is unit place + i of its page;
// no block goes over the end of a page. An entry's time and edge id are distances from `start` and `base_edge`; bit
// 31 of its neighbor means that the edge comes from there. In a wide block, for distances beyond 32 bits, entry i is
// units place + 2 i, which has the high bits, and the one behind it, which has the low ones in its first number: 24 of
// the time above 8 of the edge id.
//   start      time of the first entry
//   base_edge  no larger than any edge id of the block
//   before     number of entries in the node's earlier blocks
//   reach      distance from base_edge of an id that none in this or an earlier block of the node exceeds, of wide
//              blocks in 256; u32::MAX: too far
//   form       number of entries less 1, 14 bits; bit 14: the block is wide; bit 15: edge ids ascend with the entries
//
// Entries have 12 bytes and not 16, which would be one load each instead of three: a list of ten newest edges is 120
// bytes, so what waits in the host's memory needs a quarter less of the bus, and lanes that read neighbors of each
// other's entries touch the same sectors thrice, which hit the first-level cache.
#ifndef EVERGRAPH_GRAPH_CUH
#define EVERGRAPH_GRAPH_CUH

#include "portable.cuh"

#define INCOMING 0x80000000u
#define NO_NODE 0xFFFFFFFFu
#define NO_EDGE 0xFFFFFFFFFFFFFFFFULL
#define MIN_TIME ((i64)(1ULL << 63))

struct NodeBlocks {
    u32 first;
    u32 count;
};

struct Block {
    i64 start;
    u64 base_edge;
    u32 page;
    u32 before;
    u32 reach;
    u16 place;
    u16 form;

    FN u32 length() const { return (form & 0x3FFFu) + 1; }
    FN bool wide() const { return (form >> 14 & 1) != 0; }
    FN bool ordered() const { return form >> 15 != 0; }
    // No edge id of this block or of an earlier one of the node is above it.
    FN u64 highest() const { return reach == 0xFFFFFFFFu ? ~0ULL : base_edge + ((u64)reach << (wide() ? 8 : 0)); }
    // A time, or an edge id, as a distance that can be compared with those of entries; 0 if it is before the first.
    FN u64 distance(i64 time) const { return time <= start ? 0 : (u64)time - (u64)start; }
    FN u64 distance_of_edge(u64 edge) const { return edge <= base_edge ? 0 : edge - base_edge; }
};

struct Entry {
    u32 neighbor;
    u32 time;
    u32 edge;
};

static_assert(sizeof(NodeBlocks) == 8 && sizeof(Block) == 32 && sizeof(Entry) == 12, "as documented");

// One edge of a block, as distances.
struct Edge {
    u64 time;
    u64 edge;
    u32 neighbor;
};

// The entries of a block.
struct Entries {
    const Entry* first;
    bool is_wide;

    FN u64 time(u32 i) const {
        return is_wide ? (u64)first[2 * i].time << 24 | first[2 * i + 1].neighbor >> 8 : first[i].time;
    }
    FN u64 edge(u32 i) const {
        return is_wide ? (u64)first[2 * i].edge << 8 | (first[2 * i + 1].neighbor & 0xFFu) : first[i].edge;
    }
    FN Edge at(u32 i) const { return {time(i), edge(i), first[is_wide ? 2 * i : i].neighbor}; }
};

struct Graph {
    const NodeBlocks* nodes;
    u64 node_count;
    const Block* blocks;
    const Entry* const* pages;

    FN Entries entries(const Block& block) const { return {pages[block.page] + block.place, block.wide()}; }
};

// What of the graph may be seen: no edge with id `bound` or above, none before `since`, and none more than `age` before
// the time asked about; age < 0: any.
struct View {
    u64 bound;
    i64 since;
    i64 age;
};

#endif
