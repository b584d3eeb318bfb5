// Sums over rows in two steps, in an order that follows from the shape alone: pieces of PIECE_ROWS rows are summed by
// a block each, a thread to a column, and the pieces are added one after the other. No atomic additions, so a result
// is the same at every launch.
#ifndef EVERGRAPH_PIECES_CUH
#define EVERGRAPH_PIECES_CUH

#include "math.cuh"
#include "tables.cuh"

#define PIECE_ROWS 32u

// A result that is summed, and where its terms begin in the table of terms.
struct PieceSum {
    float* out;
    // Columns of the results before this one in the table.
    u64 before;
    u32 first;
    u32 terms;
    u32 fresh;
    u32 unused;
};

// Partial sums of pieces, `step` values apart.
struct PieceTerm {
    const float* partials;
    u64 step;
    u64 pieces;
};

// Two sums that run along together, as those of a weight and its bias.
struct Pair {
    float first = 0.0f;
    float second = 0.0f;
};

// Rows of which a thread has the terms under way together: one row after the other would wait for memory each time.
#define PIECE_ROWS_AT_ONCE 4u

// Calls `add(sum, load(row, column))` for this thread's columns and each row of this block's pieces; sums go to
// partials [pieces, 2 cols].
template <class Term, class Load, class Add>
FN void for_each_piece(u64 rows, u32 cols, float* partials, Load load, Add add) {
    u64 pieces = (rows + PIECE_ROWS - 1) / PIECE_ROWS;
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        for (u32 column = threadIdx.x; column < cols; column += blockDim.x) {
            Pair sum;
            u64 row = piece * PIECE_ROWS, end = min64(rows, row + PIECE_ROWS);
            for (; row + PIECE_ROWS_AT_ONCE <= end; row += PIECE_ROWS_AT_ONCE) {
                Term terms[PIECE_ROWS_AT_ONCE];
#pragma unroll
                for (u32 i = 0; i < PIECE_ROWS_AT_ONCE; i++) {
                    terms[i] = load(row + i, column);
                }
#pragma unroll
                for (u32 i = 0; i < PIECE_ROWS_AT_ONCE; i++) {
                    add(sum, terms[i]);
                }
            }
            for (; row < end; row++) {
                add(sum, load(row, column));
            }
            put(partials + piece * 2 * cols + column, sum.first);
            put(partials + piece * 2 * cols + cols + column, sum.second);
        }
    }
}

#endif
