// Tables whose entries have places one behind the other: tensors cut into pieces, results of several columns.
#ifndef EVERGRAPH_TABLES_CUH
#define EVERGRAPH_TABLES_CUH

#include "portable.cuh"

// The last of `count` entries that begins at `place` or before: the one that has it, by halves. `before` of an entry is
// how many places those before it have.
template <class Entry>
FN const Entry& entry_of(const Entry* table, u32 count, u64 place) {
    u32 low = 0;
    for (u32 left = count; left > 1;) {
        u32 half = left / 2;
        if (table[low + half].before <= place) {
            low += half;
            left -= half;
        } else {
            left = half;
        }
    }
    return table[low];
}

#endif
