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

// Calls f(row, column, sum) for this thread's columns and each row of this block's pieces; sums go to partials
// [pieces, 2 cols].
template <class Sum, class F>
FN void for_each_piece(u64 rows, u32 cols, float* partials, F f) {
    u64 pieces = (rows + PIECE_ROWS - 1) / PIECE_ROWS;
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        for (u32 column = threadIdx.x; column < cols; column += blockDim.x) {
            Sum sum;
            u64 end = min64(rows, (piece + 1) * PIECE_ROWS);
            // Loads of several rows are under way together: one row after the other waits for memory each time.
#pragma unroll 8
            for (u64 row = piece * PIECE_ROWS; row < end; row++) {
                f(row, column, sum);
            }
            put(partials + piece * 2 * cols + column, sum.first);
            put(partials + piece * 2 * cols + cols + column, sum.second);
        }
    }
}

// Two sums that run along together, as those of a weight and its bias.
struct Pair {
    float first = 0.0f;
    float second = 0.0f;
};

#endif
