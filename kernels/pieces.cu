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
// Registers by NVRTC 13.0, sm_80/sm_90: sum_pieces 32/32. No spills.
#include "pieces.cuh"

extern "C" __global__ void __launch_bounds__(128) sum_pieces(const PieceSum* sums, u32 count, const PieceTerm* terms,
                                                             u64 columns) {
    for (u64 column = THREAD_OF_GRID; column < columns; column += THREADS_OF_GRID) {
        const PieceSum& result = entry_of(sums, count, column);
        u64 at = column - result.before;
        bool fresh = result.fresh != 0;
        float all = fresh ? 0.0f : result.out[at];
        for (u32 t = result.first; t < result.first + result.terms; t++) {
            const PieceTerm& term = terms[t];
            float sum = 0.0f;
#pragma unroll 8
            for (u64 piece = 0; piece < term.pieces; piece++) {
                sum += term.partials[piece * term.step + at];
            }
            all = fresh ? sum : all + sum;
            fresh = false;
        }
        put(result.out + at, all);
    }
}
