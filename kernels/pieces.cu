// The second step of sums over rows, for many results in one launch.
//
//   sum_pieces   out[j] (+)= sum over its terms, in order, of the sum over pieces p, in order, of partials[p][j]
//
// Results stand one behind the other in a table, and the terms of each in another: what several layers add to one
// gradient is several terms. A result is replaced by the first where it is `fresh`.
//
// Launch: blocks of 128 threads, a thread to a column of a result; grid: columns / 128 rounded up, or any less. 4 bytes
// read per piece and column: bound by memory.
//
// Registers by NVRTC 13.0, sm_80/sm_90: sum_pieces 64/64. No spills.
#include "pieces.cuh"

// Pieces of which a thread has the values under way together.
#define PIECES_AT_ONCE 8u

extern "C" __global__ void __launch_bounds__(128, 8) sum_pieces(const PieceSum* sums, u32 count, const PieceTerm* terms,
                                                             u64 columns) {
    for (u64 column = THREAD_OF_GRID; column < columns; column += THREADS_OF_GRID) {
        const PieceSum& result = entry_of(sums, count, column);
        u64 at = column - result.before;
        bool fresh = result.fresh != 0;
        float all = fresh ? 0.0f : result.out[at];
        for (u32 t = result.first; t < result.first + result.terms; t++) {
            const PieceTerm& term = terms[t];
            const float* own = term.partials + at;
            float sum = 0.0f;
            u64 piece = 0;
            for (; piece + PIECES_AT_ONCE <= term.pieces; piece += PIECES_AT_ONCE) {
                float values[PIECES_AT_ONCE];
#pragma unroll
                for (u32 i = 0; i < PIECES_AT_ONCE; i++) {
                    values[i] = own[(piece + i) * term.step];
                }
#pragma unroll
                for (u32 i = 0; i < PIECES_AT_ONCE; i++) {
                    sum += values[i];
                }
            }
            for (; piece < term.pieces; piece++) {
                sum += own[piece * term.step];
            }
            all = fresh ? sum : all + sum;
            fresh = false;
        }
        put(result.out + at, all);
    }
}
