// Temporal attention over K fixed slots in folded form (src/nn/ops/attention.rs states why it is folded):
//
//   x_k = [nodes[slots[k]] ; edges[edge_slots[k]] ; cos(w delta_k + b)]        u_h = q_h W_K,h / sqrt(d_head)
//   a_h = softmax over the occupied slots of u_h . x_k        y_h = sum_k f_hk a_hk x_k        out_h = y_h W_V,h^T
//
// attention_forward_H_C: u [Q, H padded] -> y [S, H padded], weights a [S, H K]. attention_backward_H_C: dy [S, H
// padded] -> du [S, H padded] by seed, dx [S K, columns]. The matrix products around them (q, u, out and their
// gradients) are those of linear.cu. slots, edge_slots u32 and deltas f32 [S K], slot NO_ROW is empty; f is dropout's
// factor. Columns of u, y and dy beyond the width are zero. A seed without an occupied slot gets zeros.
//
// H heads in {1, 2, 4}, and 32 C >= padded columns with C in {4, 8, 12, 16}, H C <= 32: what a lane holds stays in
// registers. K is 32 at most. What does not fit is the CPU's.
//
// Launch: blocks of 128 threads, a warp to a seed; grid: S / 4 rounded up, or any less. Each row is read once per
// direction, 128 bytes of it per step of a warp; at K = 10, 100 + 172 + 100 columns and 2 heads a seed reads 11 KB
// forward and 11 KB backward, so the pass is bound by memory, and phi costs no traffic at all.
//
// Sums run in another order than the CPU's: results agree to rounding, and are the same at every launch.
//
// Registers by NVRTC 13.0, sm_80/sm_90: attention_backward_1_4 71/72, attention_backward_1_8 120/120,
// attention_backward_1_12 168/168, attention_backward_1_16 224/224, attention_backward_2_4 88/87,
// attention_backward_2_8 143/144, attention_backward_2_12 207/208, attention_backward_2_16 254/254,
// attention_backward_4_4 128/138, attention_backward_4_8 205/203, attention_forward_1_4 61/62, attention_forward_1_8
// 96/96, attention_forward_1_12 133/137, attention_forward_1_16 168/168, attention_forward_2_4 83/90,
// attention_forward_2_8 120/124, attention_forward_2_12 164/166, attention_forward_2_16 210/214, attention_forward_4_4
// 107/112, attention_forward_4_8 168/176. No spills.
#include "attention.cuh"

#define ATTENTION_KERNELS(H, C)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128, 2)                                                             \
        attention_forward_##H##_##C(AttentionShape shape, SlotSource source, Mask mask, const float* u, float* y,    \
                                    float* weights) {                                                                \
        for (u64 seed = THREAD_OF_GRID / 32; seed < shape.seeds; seed += THREADS_OF_GRID / 32) {                     \
            attend<H, C>(shape, source, mask, u, seed, y, weights);                                                  \
        }                                                                                                            \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(128, 2) attention_backward_##H##_##C(                               \
        AttentionShape shape, SlotSource source, Mask mask, SlotColumns columns, const float* u, const float* y,     \
        const float* weights, const float* dy, float* du, float* dx) {                                               \
        for (u64 seed = THREAD_OF_GRID / 32; seed < shape.seeds; seed += THREADS_OF_GRID / 32) {                     \
            attend_backward<H, C>(shape, source, mask, columns, u, y, weights, dy, seed, du, dx);                    \
        }                                                                                                            \
    }

ATTENTION_KERNELS(1, 4)
ATTENTION_KERNELS(1, 8)
ATTENTION_KERNELS(1, 12)
ATTENTION_KERNELS(1, 16)
ATTENTION_KERNELS(2, 4)
ATTENTION_KERNELS(2, 8)
ATTENTION_KERNELS(2, 12)
ATTENTION_KERNELS(2, 16)
ATTENTION_KERNELS(4, 4)
ATTENTION_KERNELS(4, 8)
