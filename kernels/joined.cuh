// Rows made of rows of tables: which row of a table stands in which row of a result.
#ifndef EVERGRAPH_JOINED_CUH
#define EVERGRAPH_JOINED_CUH

#include "math.cuh"

// Tables that a row may be made of.
#define ROW_PARTS 4
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
};

#endif
