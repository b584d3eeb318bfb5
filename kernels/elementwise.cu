// What layers do value by value. The twins are src/nn/cpu/elementwise.rs, gelu.rs and recurrent.rs.
//
//   add_values       out[i] = x[i] + y[i]
//   accumulate       sum[i] (+)= d[i]
//   multiply_values  out[i] (+)= x[i] y[i]
//   scale_values     out[i] = factor x[i]                        out may be x
//   relu             out[i] = max(x[i], 0); no number stays none
//   gelu             out[i] = m_i x[i] P(x[i])                   P(x): the part of a normal distribution below x
//   gelu_backward    d[i] = m_i d[i] (P(x[i]) + x[i] p(x[i]))    p: its density; m_i: dropout's factor of element i
//   rnn              y[i] = tanh(y[i] + hidden[i])
//   rnn_backward     d[i] = d[i] (1 - result[i]^2)
//
// All f32 [count]; what is written may be longer. (+)= replaces where it is to be `fresh`.
//
// Launch: blocks of 256 threads; any grid. A thread to a value; to four values, which share a random number, for gelu
// and gelu_backward. Every value is read once and written once: all are bound by memory.
//
// Each rounding is the CPU's, so all have its bits where it fuses multiply and add, but for rnn: the CPU's
// tangent does not fuse, and the two agree to rounding. NaN stays NaN, in each processor's own bits.
//
// Registers by NVRTC 13.0, sm_80/sm_90: accumulate 16/12, add_values 16/16, gelu 28/30, gelu_backward 30/32,
// multiply_values 18/16, relu 14/14, rnn 18/21, rnn_backward 12/14, scale_values 14/14. No spills.
#include "mask.cuh"
#include "math.cuh"

extern "C" __global__ void __launch_bounds__(256) add_values(const float* x, const float* y, u64 count, float* out) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        put(out + i, ADD(x[i], y[i]));
    }
}

extern "C" __global__ void __launch_bounds__(256) accumulate(const float* d, u64 count, u32 fresh, float* sum) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        put(sum + i, fresh != 0 ? d[i] : ADD(sum[i], d[i]));
    }
}

extern "C" __global__ void __launch_bounds__(256) multiply_values(const float* x, const float* y, u64 count, u32 fresh,
                                                                  float* out) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        float product = MUL(x[i], y[i]);
        put(out + i, fresh != 0 ? product : ADD(out[i], product));
    }
}

extern "C" __global__ void __launch_bounds__(256) scale_values(float factor, const float* x, u64 count, float* out) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        put(out + i, MUL(factor, x[i]));
    }
}

extern "C" __global__ void __launch_bounds__(256) relu(const float* x, u64 count, float* out) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        put(out + i, x[i] < 0.0f ? 0.0f : x[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) gelu(Mask mask, const float* x, u64 count, float* out) {
    for (u64 four = THREAD_OF_GRID; 4 * four < count; four += THREADS_OF_GRID) {
        for (u64 i = 4 * four; i < min64(count, 4 * four + 4); i++) {
            put(out + i, mask.apply(i, gaussian_unit(x[i])));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) gelu_backward(Mask mask, const float* x, u64 count, float* d) {
    for (u64 four = THREAD_OF_GRID; 4 * four < count; four += THREADS_OF_GRID) {
        for (u64 i = 4 * four; i < min64(count, 4 * four + 4); i++) {
            put(d + i, mask.apply(i, MUL(d[i], gaussian_slope(x[i]))));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) rnn(const float* hidden, u64 count, float* y) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        put(y + i, hyperbolic_tangent(ADD(y[i], hidden[i])));
    }
}

extern "C" __global__ void __launch_bounds__(256) rnn_backward(const float* result, u64 count, float* d) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        put(d + i, MUL(d[i], ADD(1.0f, -MUL(result[i], result[i]))));
    }
}
