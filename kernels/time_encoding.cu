// The time encoding, and the gradients of its weights; the twin is src/nn/cpu/time.rs.
//
//   out[i][j] = cos(w[j] deltas[i] + b[j])        the product and the sum rounded one by one
//   dw[j] = sum_i s_ij deltas[i]   db[j] = sum_i s_ij   with s_ij = -sin(w[j] deltas[i] + b[j]) d[i][j]
//
// time_encode: deltas f32 [rows], w and b f32 [dim], out f32 [rows, dim]; bit for bit as the CPU with fused
// multiply-add. Blocks of 256 threads, a thread to an element; any grid. time_backward: row i of d begins at d + i *
// stride; partials f32 [rows / PIECE_ROWS rounded up, 2 dim], dw before db, to be added up by sum_pieces. Blocks of
// 128 threads, a block to a piece; any grid.
//
// Attention computes its encodings where it uses them; these two serve what needs them as rows.
//
// Registers by NVRTC 13.0, sm_80/sm_90: time_backward 40/40, time_encode 16/20. No spills.
#include "pieces.cuh"

extern "C" __global__ void __launch_bounds__(256) time_encode(const float* deltas, const float* w, const float* b,
                                                              u64 rows, u32 dim, float* out) {
    for (u64 i = THREAD_OF_GRID; i < rows * dim; i += THREADS_OF_GRID) {
        u32 column = (u32)(i % dim);
        put(out + i, encoded(w[column], deltas[i / dim], b[column]));
    }
}

extern "C" __global__ void __launch_bounds__(128) time_backward(const float* deltas, const float* w, const float* b,
                                                                const float* d, u64 stride, u64 rows, u32 dim,
                                                                float* partials) {
    struct Term {
        float delta, slope;
    };
    auto load = [&](u64 row, u32 column) {
        float delta = deltas[row], angle = ADD(MUL(w[column], delta), b[column]);
        return Term{delta, -sine(angle) * d[row * stride + column]};
    };
    for_each_piece<Term>(rows, dim, partials, load, [](Pair& sum, const Term& term) {
        sum.first += term.slope * term.delta;
        sum.second += term.slope;
    });
}
