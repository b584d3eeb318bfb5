// One Adam step over one tensor, in one pass; the twin is src/nn/cpu/adam.rs.
//
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2      w = w shrink - size m / (sqrt(v) / root + eps)
//
// size = lr / (1 - beta1^t), root = sqrt(1 - beta2^t), shrink = 1 - lr decay: the same for every element. Each
// rounding is the processor's: bit for bit the same weights. All f32 [count].
//
// Launch: blocks of 256 threads, a thread to an element; any grid.
//
// Registers by nvcc 13.0 -Xptxas -v, sm_80/sm_90: adam 27/30. No spills.
// Not verified on a GPU.
#include "math.cuh"

struct AdamStep {
    float beta1;
    float beta2;
    float size;
    float root;
    float eps;
    float shrink;
};

extern "C" __global__ void __launch_bounds__(256) adam(AdamStep step, float* weights, float* first, float* second,
                                                       const float* gradient, u64 count) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        float g = gradient[i];
        float m = ADD(MUL(step.beta1, first[i]), MUL(ADD(1.0f, -step.beta1), g));
        float v = ADD(MUL(step.beta2, second[i]), MUL(MUL(ADD(1.0f, -step.beta2), g), g));
        float move = MUL(step.size, m) / ADD(sqrtf(v) / step.root, step.eps);
        put(first + i, m);
        put(second + i, v);
        put(weights + i, ADD(MUL(weights[i], step.shrink), -move));
    }
}
