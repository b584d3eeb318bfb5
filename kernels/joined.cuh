// Rows made of rows of tables: which row of a table stands in which row of a result.
#ifndef EVERGRAPH_JOINED_CUH
#define EVERGRAPH_JOINED_CUH

#include "math.cuh"

// Tables that a row may be made of.
#define ROW_PARTS 4
// Users of a row that are too many for one warp.
#define USERS_MANY 64u
// What happens to what is there, and to the result.
#define ROWS_ADD 1u
#define ROWS_RELU 2u

// Some columns of a result: row list[i] of a table for row i, or row i where there is no list; zeros where the table
// has no such row. Rows are `stride` values apart.
struct RowPart {
    const float* table;
    const u32* list;
    u64 stride;
    u32 rows;
    u32 columns;

    // The row for row i of the result, or null.
    FN const float* row(u64 i) const {
        u64 number = list == nullptr ? i : list[i];
        return number < rows ? table + number * stride : nullptr;
    }
};

// Parts side by side; those without columns are none.
struct RowParts {
    RowPart parts[ROW_PARTS];
};

// Who reads each row of a table: the places starts[r]..starts[r + 1] of `places`, ascending.
struct RowUsers {
    const u32* starts;
    const u32* places;
    // How many places are listed.
    u32 count;
    // Rows that the places may name.
    u32 rows;

    FN u32 begin(u64 row) const { return min32(starts[row], end(row)); }
    FN u32 end(u64 row) const { return min32(starts[row + 1], count); }
};

// Values of a row that a lane has under way together.
#define VALUES_AT_ONCE 4u

// Copies a row, by a warp; zeros where there is none. Values are loaded before any is stored: a compiler that cannot
// tell that the rows do not overlap would wait for each.
FN void copy_row(float* to, const float* row, u32 columns) {
    for (u32 first = threadIdx.x & 31; first < columns; first += 32 * VALUES_AT_ONCE) {
        float values[VALUES_AT_ONCE] = {};
#pragma unroll
        for (u32 i = 0; i < VALUES_AT_ONCE; i++) {
            u32 column = first + 32 * i;
            if (row != nullptr && column < columns) {
                values[i] = row[column];
            }
        }
#pragma unroll
        for (u32 i = 0; i < VALUES_AT_ONCE; i++) {
            u32 column = first + 32 * i;
            if (column < columns) {
                put(to + column, values[i]);
            }
        }
    }
}

// Users whose values a lane has under way together.
#define USERS_AT_ONCE 8u

// The sum of one column of d over the users in begin..end, of which a warp takes 32, leaves out 32 (parts - 1), takes
// 32 again; all its lanes together. Lanes whose column there is not have zero.
FN float sum_of_users(const RowUsers& users, const float* d, u64 stride, u64 column, bool exists, u32 begin, u32 end,
                      u32 parts) {
    float sum = 0.0f;
    for (u32 first = begin; first < end; first += 32 * parts) {
        u32 mine = first + (threadIdx.x & 31), taken = min32(32, end - first);
        u32 place = mine < end ? users.places[mine] : 0xFFFFFFFFu;
        // Those behind the last one taken are none.
        for (u32 i = 0; i < taken; i += USERS_AT_ONCE) {
            float values[USERS_AT_ONCE] = {};
#pragma unroll
            for (u32 j = 0; j < USERS_AT_ONCE; j++) {
                u32 user = __shfl_sync(0xFFFFFFFFu, place, (int)(i + j));
                if (exists && user < users.rows) {
                    values[j] = d[user * stride + column];
                }
            }
#pragma unroll
            for (u32 j = 0; j < USERS_AT_ONCE; j++) {
                sum += values[j];
            }
        }
    }
    return sum;
}

#endif
