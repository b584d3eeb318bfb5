// Layer normalization of rows; the twin is src/nn/cpu/layer_norm.rs.
//
//   y = (x - mean) rstd gamma + beta        rstd = 1 / sqrt(variance + eps), mean and variance of the row
//   dx = rstd (d gamma - m1 - (x - mean) rstd m2)     m1 = mean(d gamma), m2 = mean(d gamma (x - mean) rstd)
//   dgamma = sum over rows of d (x - mean) rstd       dbeta = sum over rows of d
//
// x, y, d f32 [rows, cols]; gamma, beta f32 [cols]; moments f32 [rows, 2]: mean and rstd. layer_norm_forward and
// layer_norm_backward (d in place): blocks of 128 threads, a warp to a row; any grid. layer_norm_parameters, before
// the backward: partials f32 [rows / PIECE_ROWS rounded up, 2 cols], dgamma before dbeta, to be added up by
// sum_pieces; blocks of 128 threads, a block to a piece; any grid. cols >= 1.
//
// Sums over a row run in another order than the CPU's: results agree to rounding, and are the same at every
// launch.
//
// Registers by NVRTC 13.0, sm_80/sm_90: layer_norm_backward 32/32, layer_norm_forward 26/30, layer_norm_parameters
// 48/48. No spills.
#include "pieces.cuh"

// The sum of f(column) over the columns of a row, by a warp.
template <class F>
FN float row_sum(u32 cols, F f) {
    float sum = 0.0f;
    for (u32 column = threadIdx.x & 31; column < cols; column += 32) {
        sum += f(column);
    }
    return warp_sum(sum);
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_forward(const float* x, const float* gamma,
                                                                     const float* beta, float eps, u64 rows, u32 cols,
                                                                     float* y, float* moments) {
    for (u64 row = THREAD_OF_GRID / 32; row < rows; row += THREADS_OF_GRID / 32) {
        const float* in = x + row * cols;
        float mean = row_sum(cols, [&](u32 c) { return in[c]; }) / cols;
        float variance = row_sum(cols, [&](u32 c) { return (in[c] - mean) * (in[c] - mean); }) / cols;
        float rstd = 1.0f / sqrtf(variance + eps);
        for (u32 c = threadIdx.x & 31; c < cols; c += 32) {
            put(y + row * cols + c, (in[c] - mean) * rstd * gamma[c] + beta[c]);
        }
        if ((threadIdx.x & 31) == 0) {
            put(moments + 2 * row, mean);
            put(moments + 2 * row + 1, rstd);
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_parameters(const float* d, const float* x,
                                                                        const float* moments, u64 rows, u32 cols,
                                                                        float* partials) {
    struct Term {
        float given, value, mean, rstd;
    };
    auto load = [&](u64 row, u32 column) {
        return Term{d[row * cols + column], x[row * cols + column], moments[2 * row], moments[2 * row + 1]};
    };
    for_each_piece<Term>(rows, cols, partials, load, [](Pair& sum, const Term& term) {
        sum.first += term.given * (term.value - term.mean) * term.rstd;
        sum.second += term.given;
    });
}

extern "C" __global__ void __launch_bounds__(128) layer_norm_backward(float* d, const float* x, const float* moments,
                                                                      const float* gamma, u64 rows, u32 cols) {
    for (u64 row = THREAD_OF_GRID / 32; row < rows; row += THREADS_OF_GRID / 32) {
        float* given = d + row * cols;
        const float* in = x + row * cols;
        float mean = moments[2 * row], rstd = moments[2 * row + 1];
        // Rounded before it is used: in a row of one column it cancels with its mean, which a fused product would not.
        auto scaled = [&](u32 c) { return MUL(given[c], gamma[c]); };
        float plain = row_sum(cols, scaled) / cols;
        float along = row_sum(cols, [&](u32 c) { return scaled(c) * (in[c] - mean) * rstd; }) / cols;
        for (u32 c = threadIdx.x & 31; c < cols; c += 32) {
            put(given + c, rstd * (scaled(c) - plain - (in[c] - mean) * rstd * along));
        }
    }
}
