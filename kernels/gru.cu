// The element-wise part of a GRU cell, after the two matrix products; the twin is src/nn/cpu/recurrent.rs.
//
//   r, z = sigmoid(gates + bias)      n = tanh(gates_n + r (hidden + bias_n))      out = (1 - z) n + z h
//
// gru_forward: gates f32 [rows, 3 width], in: W_ih x + b_ih; out: r, z, n. hidden f32 [rows, 3 width], in: W_hh h; out:
// its block n with its bias. bias f32 [3 width] is b_hh; h and out f32 [rows, width]. gru_backward, in place, from what
// the forward left: d [rows, width] of the result becomes the direct part of the gradient of h, gates that of W_ih x +
// b_ih, hidden that of W_hh h + b_hh, which has the same blocks r and z: a layer's products are then of whole rows, one
// for each direction.
//
// Launch: blocks of 256 threads, a thread to an element of a row; any grid. Every number is read once and written once:
// 8 reads and 5 writes forward, 6 and 7 backward, all in whole lines.
//
// Registers by NVRTC 13.0, sm_80/sm_90: gru_backward 30/32, gru_forward 28/31. No spills.
#include "math.cuh"

extern "C" __global__ void __launch_bounds__(256) gru_forward(float* gates, float* hidden, const float* h,
                                                              const float* bias, u64 rows, u32 width, float* out) {
    for (u64 i = THREAD_OF_GRID; i < rows * width; i += THREADS_OF_GRID) {
        u32 column = (u32)(i % width);
        u64 first = i / width * 3 * width + column;
        float *gate = gates + first, *given = hidden + first;
        float r = sigmoid(ADD(ADD(gate[0], given[0]), bias[column]));
        float z = sigmoid(ADD(ADD(gate[width], given[width]), bias[width + column]));
        float inner = ADD(given[2 * width], bias[2 * width + column]);
        float n = hyperbolic_tangent(ADD(gate[2 * width], MUL(r, inner)));
        put(gate, r);
        put(gate + width, z);
        put(gate + 2 * width, n);
        put(given + 2 * width, inner);
        put(out + i, ADD(MUL(ADD(1.0f, -z), n), MUL(z, h[i])));
    }
}

extern "C" __global__ void __launch_bounds__(256) gru_backward(float* d, float* gates, float* hidden, const float* h,
                                                               u64 rows, u32 width) {
    for (u64 i = THREAD_OF_GRID; i < rows * width; i += THREADS_OF_GRID) {
        u64 first = i / width * 3 * width + i % width;
        float *gate = gates + first, *given = hidden + first;
        float r = gate[0], z = gate[width], n = gate[2 * width];
        float dn = d[i] * (1.0f - z) * (1.0f - n * n);
        float dr = dn * given[2 * width] * r * (1.0f - r), dz = d[i] * (h[i] - n) * z * (1.0f - z);
        put(gate, dr);
        put(gate + width, dz);
        put(gate + 2 * width, dn);
        put(given, dr);
        put(given + width, dz);
        put(given + 2 * width, dn * r);
        put(d + i, d[i] * z);
    }
}
