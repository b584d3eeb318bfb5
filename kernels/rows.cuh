// Arithmetic of copying rows: who copies which column of which row, and where in memory that is.
//
// A row is `width` bytes at base + row * stride. It is copied in columns of V bytes, V in {16, 8, 4, 1}, by 2^k
// neighboring threads, the row's lanes. A row of more than LINE bytes that does not begin on a line is walked from
// the line before it on: what lies before the row is left out, and from there every 32 lanes read whole lines.
// Otherwise each step would touch one line more than it needs, and through the bus a line is a request.
#ifndef EVERGRAPH_ROWS_CUH
#define EVERGRAPH_ROWS_CUH

#include "portable.cuh"

// Bytes that memory hands over at a time.
#define LINE 128u
// Rows that a lane has under way together: as many loads are waited for at once.
#define ROWS_AT_ONCE 4

// The widest V that fits addresses, strides and width, given all of them combined by "or".
FN u32 vector_bytes(u64 all) {
    return (all & 15) == 0 ? 16 : (all & 7) == 0 ? 8 : (all & 3) == 0 ? 4 : 1;
}

// k of the 2^k lanes of a row: the fewest that copy it in one step, a warp at most. Where rows are few, a caller gives
// each more, up to a block. Rows of a line at most are not shifted; a longer one may begin LINE - V bytes behind its
// line.
FN u32 lanes_log2(u64 width, u32 vector) {
    u64 columns = (width + (width > LINE ? LINE - vector : 0)) / vector;
    u32 k = 0;
    while (k < 5 && (1ULL << k) < columns) {
        k += 1;
    }
    return k;
}

// Columns by which the walk of a row of `width` bytes at `address` begins before it.
FN u32 row_shift(u64 address, u64 width, u32 vector) {
    return width > LINE ? (u32)address % LINE / vector : 0;
}

// The rows of one call, and what it counts.
struct RowCopy {
    const u8* from;
    u8* to;
    u64 from_stride;
    u64 to_stride;
    u32 width;
    // Row numbers on the side of the table; on the other side rows stand in order. Of a fill: for each row where it
    // is, or u64::MAX, and its number in the table, in 64 bits each.
    const void* list;
    u32 count;
    // Rows of the table.
    u64 rows;
    // Row numbers that are neither below `rows` nor "no row".
    u32* errors;
    u32 lanes_log2;
    bool wide;
};

// What the list names: GATHER, rows of `from`; SCATTER, rows of `to`; FILL, addresses and rows of `to`.
enum Way { GATHER, SCATTER, FILL };

// Copies this thread's columns of all its rows, whose numbers have the type Number, the largest of which is "no row".
// A warp takes as long to find where its rows are as to wait for them. So addresses are computed whatever a row is,
// side by side, and a row that must not be touched has no columns.
template <class Column, Way WAY, class Number>
FN void copy_listed(const RowCopy& call) {
    const u32 thread = (u32)THREAD_OF_GRID, threads = (u32)THREADS_OF_GRID;
    const u32 vector = sizeof(Column), lanes = 1u << call.lanes_log2, lane = thread & (lanes - 1);
    const u32 columns = call.width / vector, teams = threads >> call.lanes_log2;
    const Number none = (Number)~0ULL, rows = call.rows < none ? (Number)call.rows : none;
    const Number* list = (const Number*)call.list;
    // From a row of a thread to its next one on the side where rows stand in order.
    const u64 next = teams * (WAY == SCATTER ? call.from_stride : call.to_stride);
    u32 mistakes = 0;
    for (u32 first = thread >> call.lanes_log2; first < call.count; first += teams * ROWS_AT_ONCE) {
        // Of a fill: the places of rows, and their addresses.
        Number numbers[ROWS_AT_ONCE];
        u64 addresses[ROWS_AT_ONCE];
        // All are on their way before the first is looked at.
#pragma unroll
        for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
            u32 i = first + r * teams;
            bool is_listed = i < call.count;
            addresses[r] = WAY == FILL && is_listed ? ((const u64*)call.list)[2 * (u64)i] : ~0ULL;
            numbers[r] = is_listed ? list[WAY == FILL ? 2 * (u64)i + 1 : i] : none;
        }
        const u64 in_order = first * (WAY == SCATTER ? call.from_stride : call.to_stride);
        const u8* from[ROWS_AT_ONCE];
        u8* to[ROWS_AT_ONCE];
        // Columns that are loaded and stored, and those by which the walk begins before a row.
        u32 loaded[ROWS_AT_ONCE], stored[ROWS_AT_ONCE], shift[ROWS_AT_ONCE], most = 0;
#pragma unroll
        for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
            u64 row = numbers[r];
            bool exists = numbers[r] < rows;
            // One more than "no row" is 0.
            mistakes += (Number)(numbers[r] + 1) > rows;
            if (WAY == GATHER) {
                from[r] = call.from + row * call.from_stride;
                to[r] = call.to + in_order + r * next;
                stored[r] = first + r * teams < call.count ? columns : 0;
                loaded[r] = exists ? columns : 0;
            } else {
                from[r] = WAY == FILL ? (const u8*)addresses[r] : call.from + in_order + r * next;
                to[r] = call.to + row * call.to_stride;
                stored[r] = exists ? columns : 0;
                loaded[r] = WAY == FILL && addresses[r] == ~0ULL ? 0 : stored[r];
            }
            shift[r] = loaded[r] == 0 ? 0 : row_shift((u64)(WAY == SCATTER ? to[r] : from[r]), call.width, vector);
            u32 end = stored[r] + shift[r];
            most = end < most ? most : end;
        }
        for (u32 step = lane; step < most; step += lanes) {
            Column held[ROWS_AT_ONCE] = {};
#pragma unroll
            for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
                u32 column = step - shift[r];
                if (column < loaded[r]) {
                    held[r] = ((const Column*)from[r])[column];
                }
            }
#pragma unroll
            for (u32 r = 0; r < ROWS_AT_ONCE; r++) {
                u32 column = step - shift[r];
                if (column < stored[r]) {
                    put((Column*)to[r] + column, held[r]);
                }
            }
        }
    }
    if (WAY != FILL && mistakes != 0 && lane == 0) {
        atomicAdd(call.errors, mistakes);
    }
}

template <class Column, Way WAY>
FN void copy_rows(const RowCopy& call) {
    if (WAY == FILL || call.wide) {
        copy_listed<Column, WAY, u64>(call);
    } else {
        copy_listed<Column, WAY, u32>(call);
    }
}

#endif
