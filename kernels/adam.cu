// One Adam step in one pass; the twin is src/nn/cpu/adam.rs.
//
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2      w = w shrink - size m / (sqrt(v) / root + eps)
//
// size = lr / (1 - beta1^t), root = sqrt(1 - beta2^t), shrink = 1 - lr decay: the same for every element. Each
// rounding is the CPU's: bit for bit the same weights. All f32 [count].
//
// adam_bounded_all does it to all tensors of a table in one launch, since most of them are small. It multiplies
// gradients by the factor that bound_norm of loss.cu left in bound[1], and does nothing where that is 0. `pieces` is
// how many pieces of ADAM_PIECE values the tensors have together.
//
// Launch: blocks of 256 threads, a thread to an element, of adam_bounded_all a block to a piece; any grid. 16 bytes are
// read and 12 written per element: bound by memory.
//
// Registers by NVRTC 13.0, sm_80/sm_90: adam 27/30, adam_bounded_all 39/38. No spills.
#include "math.cuh"
#include "tensors.cuh"

// Weights that a block moves together.
#define ADAM_PIECE 1024u

struct AdamStep {
    float beta1;
    float beta2;
    float size;
    float root;
    float eps;
    float shrink;
};

FN void adam_move(const AdamStep& step, float* weights, float* first, float* second, float g, u64 i) {
    float m = ADD(MUL(step.beta1, first[i]), MUL(ADD(1.0f, -step.beta1), g));
    float v = ADD(MUL(step.beta2, second[i]), MUL(MUL(ADD(1.0f, -step.beta2), g), g));
    float move = MUL(step.size, m) / ADD(sqrtf(v) / step.root, step.eps);
    put(first + i, m);
    put(second + i, v);
    put(weights + i, ADD(MUL(weights[i], step.shrink), -move));
}

extern "C" __global__ void __launch_bounds__(256) adam(AdamStep step, float* weights, float* first, float* second,
                                                       const float* gradient, u64 count) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        adam_move(step, weights, first, second, gradient[i], i);
    }
}

extern "C" __global__ void __launch_bounds__(256) adam_bounded_all(AdamStep step, const AdamTensor* tensors, u32 count,
                                                                   u64 pieces, const float* bound) {
    float factor = bound[1];
    if (factor == 0.0f) {
        return;
    }
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        AdamTensor tensor = entry_of(tensors, count, piece);
        u64 begin = (piece - tensor.before) * ADAM_PIECE, end = min64(tensor.count, begin + ADAM_PIECE);
        for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
            adam_move(step, tensor.weights, tensor.first, tensor.second, MUL(tensor.gradient[i], factor), i);
        }
    }
}
