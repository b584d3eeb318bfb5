// The table of the row cache: which slot holds the row of an id. The layout and why nothing stale is found are in
// src/feature/cache/table.rs; the bytes are the same.
#ifndef EVERGRAPH_ROW_CACHE_CUH
#define EVERGRAPH_ROW_CACHE_CUH

#include "portable.cuh"

// In no slot.
#define ROW_CACHE_MISS 0xFFFFFFFFu
// Stands for no id.
#define ROW_CACHE_EMPTY 0xFFFFFFFFFFFFFFFFull

// Eight entries, a column each.
struct alignas(128) RowCacheBucket {
    u64 ids[8];
    u32 slots[8];
    u32 generations[8];
};
static_assert(sizeof(RowCacheBucket) == 128, "the layout of table.rs");

struct RowCacheTable {
    const RowCacheBucket* buckets;
    // Of each slot.
    const u32* generations;
    u32 bucket_count;
    u32 slot_count;
};

// One step of SplitMix64 from the state HASH_STATE of src/feature/cache/buckets.rs: the twin of `rng::draw`.
FN u64 row_cache_hash(u64 id) {
    u64 x = 0x726F775F63616368ull + (id + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// The slot that holds the row of `id`, or ROW_CACHE_MISS. Two buckets are read, whatever the table holds.
FN u32 row_cache_slot(const RowCacheTable& table, u64 id) {
    if (id == ROW_CACHE_EMPTY) {
        return ROW_CACHE_MISS;
    }
    u64 hash = row_cache_hash(id);
    u32 homes[2] = {(u32)(((hash >> 32) * table.bucket_count) >> 32),
                    (u32)(((hash & 0xFFFFFFFFu) * table.bucket_count) >> 32)};
    if (homes[1] == homes[0]) {
        homes[1] = homes[0] + 1 == table.bucket_count ? 0 : homes[0] + 1;
    }
    for (u32 home = 0; home < 2; home++) {
        const RowCacheBucket& bucket = table.buckets[homes[home]];
        for (u32 entry = 0; entry < 8; entry++) {
            if (bucket.ids[entry] == id) {
                u32 slot = bucket.slots[entry];
                if (slot < table.slot_count && table.generations[slot] == bucket.generations[entry]) {
                    return slot;
                }
            }
        }
    }
    return ROW_CACHE_MISS;
}

#endif
