// Linear layers of the shapes of a TGN step: 600 to 12,000 rows, 100 to 500 columns on either side, in f32.
//
//   linear_forward   out[m, n] (+)= scale a[m, k] w[n, k]^T + bias[n], with max(x, 0) of it if asked for
//   linear_input     da[m, k]  (+)= scale d[m, n] w[n, k]
//   linear_weights   dw[n, k] = scale d[m, n]^T a[m, k]        db[n] = sum over rows of d[m, n]
//
// The last is partial sums over pieces of PRODUCT_PIECE_ROWS rows, `piece_step` values apart, to be added up by
// sum_pieces: no atomics, the same result at every launch. Those of a bias, if there is one, are of the first part, and
// stand `bias` values behind the beginning of those of the weights; k >= 1 then. Operands are parts of longer rows where
// strides are longer than rows, and `parts` products of one shape run in one launch, as the heads of an attention. In
// `Product` rows and columns are those of the result: m and n, m and k, n and k.
//
// They are not a library's because a whole step has to run where there is neither a library of products nor a GPU: the
// CPU simulates one with this text.
//
// Launch: blocks of 256 threads, exactly; grid: one per tile of 32 x 32 values, part and piece, or any less.
//
// 2 m n k FLOP per launch, 4 (m k + n k + m n) bytes from memory, m k read again from the second-level cache for every
// 32 columns of the result and n k for every 32 rows. At m = 12,000, n = 100, k = 300: 0.72 GFLOP and 19 MB, 1,500
// blocks: bound by multiplications (11 us at 67 TFLOP/s, 6 us at 3.3 TB/s). At m = 600 there are 76 blocks for 132
// multiprocessors: bound by the latency of the steps of one team, k / 64 of them one after the other. linear_weights
// writes and reads again 4 n k bytes per piece: 47 pieces at 12,000 rows; the sums of a bias are of what blocks of the
// first tile of columns have in shared memory anyway. The times follow from rates; none is measured.
//
// Sums run in another order than the CPU's: results agree to rounding.
//
// Registers by NVRTC 13.0, sm_80/sm_90: linear_forward 104/108, linear_input 108/113, linear_weights 101/105. No
// spills.
#include "linear.cuh"

// Two blocks to a multiprocessor, so that the compiler has the registers to ask for the next step's loads before it
// computes with this one's: with fewer it moves them to the end, where they are waited for.
extern "C" __global__ void __launch_bounds__(256, 2) linear_forward(Product p, const float* a, const float* w,
                                                                    const float* bias, float* out) {
    multiply<true, true, false>(p, a, w, bias, 0, 0, out, nullptr);
}

extern "C" __global__ void __launch_bounds__(256, 2) linear_input(Product p, const float* d, const float* w,
                                                                  float* da) {
    multiply<true, false, false>(p, d, w, nullptr, 0, 0, da, nullptr);
}

extern "C" __global__ void __launch_bounds__(256, 2) linear_weights(Product p, const float* d, const float* a,
                                                                    u64 piece_step, u32 biased, u64 bias,
                                                                    float* partials) {
    float* sums = biased != 0 ? partials + bias : nullptr;
    multiply<false, false, true>(p, d, a, nullptr, PRODUCT_PIECE_ROWS, piece_step, partials, sums);
}
