// The element-wise part of a GRU cell, after the two matrix products; the twin is src/nn/cpu/recurrent.rs.
//
//   r, z = sigmoid(gates + bias)      n = tanh(gates_n + r (hidden + bias_n))      out = (1 - z) n + z h
//
// gru_forward: gates f32 [rows, 3 width], in: W_ih x + b_ih, blocks r and z with those of W_hh h; out: r, z, n.
// hidden f32 [rows, width], in: block n of W_hh h; out: with its bias. bias f32 [3 width] is b_hh; h and out f32
// [rows, width]. gru_backward, in place, from what the forward left: d [rows, width] of the result becomes the direct
// part of the gradient of h, gates that of W_ih x + b_ih, hidden that of block n of W_hh h + b_hh.
//
// Launch: blocks of 256 threads, a thread to an element of a row; any grid. Every number is read once and written once:
// 6 reads and 5 writes forward, 6 and 5 backward, all in whole lines.
//
// Registers by nvcc 13.0 -Xptxas -v, sm_80/sm_90: gru_backward 26/28, gru_forward 28/32. No spills.
#include "math.cuh"

extern "C" __global__ void __launch_bounds__(256) gru_forward(float* gates, float* hidden, const float* h,
                                                              const float* bias, u64 rows, u32 width, float* out) {
    for (u64 i = THREAD_OF_GRID; i < rows * width; i += THREADS_OF_GRID) {
        u32 column = (u32)(i % width);
        float* gate = gates + i / width * 3 * width + column;
        float r = sigmoid(ADD(gate[0], bias[column]));
        float z = sigmoid(ADD(gate[width], bias[width + column]));
        float inner = ADD(hidden[i], bias[2 * width + column]);
        float n = hyperbolic_tangent(ADD(gate[2 * width], MUL(r, inner)));
        put(gate, r);
        put(gate + width, z);
        put(gate + 2 * width, n);
        put(hidden + i, inner);
        put(out + i, ADD(MUL(ADD(1.0f, -z), n), MUL(z, h[i])));
    }
}

extern "C" __global__ void __launch_bounds__(256) gru_backward(float* d, float* gates, float* hidden, const float* h,
                                                               u64 rows, u32 width) {
    for (u64 i = THREAD_OF_GRID; i < rows * width; i += THREADS_OF_GRID) {
        float* gate = gates + i / width * 3 * width + i % width;
        float r = gate[0], z = gate[width], n = gate[2 * width];
        float dn = d[i] * (1.0f - z) * (1.0f - n * n);
        put(gate, dn * hidden[i] * r * (1.0f - r));
        put(gate + width, d[i] * (h[i] - n) * z * (1.0f - z));
        put(gate + 2 * width, dn);
        put(hidden + i, dn * r);
        put(d + i, d[i] * z);
    }
}
