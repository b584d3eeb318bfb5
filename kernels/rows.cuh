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
    return width > LINE ? (u32)(address % LINE) / vector : 0;
}

// The rows of one call, and what it counts.
struct RowCopy {
    const u8* from;
    u8* to;
    u64 from_stride;
    u64 to_stride;
    u64 width;
    // Row numbers on the side of the table; on the other side rows stand in order. Of a fill: for each row where it
    // is, or u64::MAX, and its number in the table, in 64 bits each.
    const void* list;
    u64 count;
    // Rows of the table.
    u64 rows;
    // Row numbers that are neither below `rows` nor "no row".
    u32* errors;
    u32 lanes_log2;
    bool wide;
};

// Row numbers `first`, `first + step`, ... of a list of 32-bit or 64-bit row numbers, "no row" behind its end. In 32
// bits u32::MAX stands for u64::MAX: "no row". All are on their way before the first is looked at.
FN void rows_at(const RowCopy& call, u64 first, u64 step, u64 (&rows)[ROWS_AT_ONCE]) {
    if (call.wide) {
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            u64 i = first + r * step;
            rows[r] = i < call.count ? ((const u64*)call.list)[i] : ~0ULL;
        }
        return;
    }
    u32 narrow[ROWS_AT_ONCE];
#pragma unroll
    for (int r = 0; r < ROWS_AT_ONCE; r++) {
        u64 i = first + r * step;
        narrow[r] = i < call.count ? ((const u32*)call.list)[i] : 0xFFFFFFFFu;
    }
#pragma unroll
    for (int r = 0; r < ROWS_AT_ONCE; r++) {
        rows[r] = narrow[r] == 0xFFFFFFFFu ? ~0ULL : narrow[r];
    }
}

// What the list names: GATHER, rows of `from`; SCATTER, rows of `to`; FILL, addresses and rows of `to`.
enum Way { GATHER, SCATTER, FILL };

// Copies this thread's columns of all its rows.
template <class Column, Way WAY>
FN void copy_rows(const RowCopy& call, u64 thread, u64 threads) {
    const u32 vector = sizeof(Column);
    const u32 lanes = 1u << call.lanes_log2;
    const u64 columns = call.width / vector;
    const u64 column_of_lane = thread & (lanes - 1);
    const u64 teams = threads >> call.lanes_log2;
    for (u64 first = thread >> call.lanes_log2; first < call.count; first += teams * ROWS_AT_ONCE) {
        const Column* from[ROWS_AT_ONCE];
        Column* to[ROWS_AT_ONCE];
        u32 shift[ROWS_AT_ONCE];
        u64 most = 0;
        // Of a fill: addresses, and places.
        u64 rows[ROWS_AT_ONCE], places[ROWS_AT_ONCE];
        if (WAY == FILL) {
#pragma unroll
            for (int r = 0; r < ROWS_AT_ONCE; r++) {
                u64 i = first + r * teams;
                rows[r] = i < call.count ? ((const u64*)call.list)[2 * i] : ~0ULL;
                places[r] = i < call.count ? ((const u64*)call.list)[2 * i + 1] : ~0ULL;
            }
        } else {
            rows_at(call, first, teams, rows);
        }
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            u64 i = first + r * teams;
            from[r] = nullptr;
            to[r] = nullptr;
            shift[r] = 0;
            if (i >= call.count) {
                continue;
            }
            if (WAY == FILL) {
                u64 address = rows[r], place = places[r];
                if (place >= call.rows) {
                    continue;
                }
                to[r] = (Column*)(call.to + place * call.to_stride);
                if (address != ~0ULL) {
                    from[r] = (const Column*)address;
                    shift[r] = row_shift(address, call.width, vector);
                }
                most = columns + shift[r] < most ? most : columns + shift[r];
                continue;
            }
            u64 row = rows[r];
            bool exists = row < call.rows;
            if (!exists && row != ~0ULL && column_of_lane == 0) {
                atomicAdd(call.errors, 1u);
            }
            u64 from_row = WAY == SCATTER ? i : row;
            u64 to_row = WAY == SCATTER ? row : i;
            if (exists) {
                from[r] = (const Column*)(call.from + from_row * call.from_stride);
            }
            if (exists || WAY != SCATTER) {
                to[r] = (Column*)(call.to + to_row * call.to_stride);
            }
            if (exists) {
                shift[r] = row_shift(WAY == SCATTER ? (u64)to[r] : (u64)from[r], call.width, vector);
            }
            most = to[r] == nullptr || columns + shift[r] < most ? most : columns + shift[r];
        }
        for (u64 step = column_of_lane; step < most; step += lanes) {
            Column held[ROWS_AT_ONCE] = {};
#pragma unroll
            for (int r = 0; r < ROWS_AT_ONCE; r++) {
                u64 column = step - shift[r];
                if (from[r] != nullptr && column < columns) {
                    held[r] = from[r][column];
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS_AT_ONCE; r++) {
                u64 column = step - shift[r];
                if (to[r] != nullptr && column < columns) {
                    put(to[r] + column, held[r]);
                }
            }
        }
    }
}

#endif
