// The second step of sums over rows: out[j] (+)= sum over pieces p, in order, of partials[p][j].
//
// partials f32 [pieces, cols]; out f32 [cols], replaced if `fresh`. Launch: blocks of 128 threads, a thread to a
// column; grid: cols / 128 rounded up, or any less.
//
// Registers by nvcc 13.0 -Xptxas -v, sm_80/sm_90: sum_pieces 24/29. No spills.
#include "pieces.cuh"

extern "C" __global__ void __launch_bounds__(128) sum_pieces(const float* partials, u64 pieces, u64 cols, float* out,
                                                             u32 fresh) {
    for (u64 column = THREAD_OF_GRID; column < cols; column += THREADS_OF_GRID) {
        float sum = 0.0f;
        for (u64 piece = 0; piece < pieces; piece++) {
            sum += partials[piece * cols + column];
        }
        put(out + column, fresh != 0 ? sum : out[column] + sum);
    }
}
