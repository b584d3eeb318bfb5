// What a step learns from, and how far it goes. The twins are src/nn/cpu/loss.rs and, for the bound, src/train/step.rs.
//
//   bce             loss = mean of l(x, 1) over the first `ones` + mean of l(x, 0) over the rest
//                                                                       l(x, t) = max(x, 0) - x t + ln(1 + exp(-|x|))
//   bce_backward    d = (sigmoid(x) - t) scale / n                      n: how many logits have the target t
//   squares_of_all  partials[p] = sum over piece p of SQUARES_PIECE values of g^2, of the gradients of the tensors of a
//                   table, one behind the other
//   bound_norm      bound = [norm, factor]    norm = sqrt(sum of partials)    factor = min(1, most / norm), or 0 where
//                   the norm or the loss is not finite: Adam then leaves all as it is
//
// bce, bce_backward: logits and d f32 [count], loss and scale f32 [1], scale being the gradient of the loss.
// squares_of_all: partials f64, of each tensor count / SQUARES_PIECE rounded up. bound_norm: bound f32 [2]; loss f32
// [1]. Everything is computed in 64 bits, as by the CPU, and stays on the GPU: the host reads norm and loss when it
// likes to.
//
// Launch: blocks of 256 threads, exactly. bce and bound_norm: one block does it all, since there are some thousand
// logits and some hundred partial sums; bound by the latency of exp and ln in 64 bits, count / 256 times one after the
// other. bce_backward: a thread to a logit, any grid. squares_of_all: a block to a piece, any grid; 4 bytes
// read per value, bound by memory.
//
// Additions run in an order that follows from the sizes alone: the same result at every launch.
//
// Registers by NVRTC 13.0, sm_80/sm_90: bce 34/34, bce_backward 29/32, bound_norm 26/26,
// squares_of_all 28/24. No spills.
#include "sums.cuh"
#include "tensors.cuh"

// Values that a block squares and sums.
#define SQUARES_PIECE 4096u

// l(x, t), finite for an x of any size.
FN double entropy(double x, double target) {
    return (x < 0.0 ? 0.0 : x) - x * target + log1p(exp(-fabs(x)));
}

FN double entropy_slope(double x, double target) { return 1.0 / (1.0 + exp(-x)) - target; }

// The mean entropy of the logits from `begin` to `end`, for all threads of the block.
FN float mean_entropy(const float* logits, u64 begin, u64 end, double target) {
    double sum = 0.0;
    for (u64 i = begin + threadIdx.x; i < end; i += SUM_THREADS) {
        sum += entropy((double)logits[i], target);
    }
    sum = block_sum(sum);
    return begin < end ? (float)(sum / (double)(end - begin)) : 0.0f;
}

extern "C" __global__ void __launch_bounds__(256) bce(const float* logits, u64 ones, u64 count, float* loss) {
    if (blockIdx.x != 0) {
        return;
    }
    float happened = mean_entropy(logits, 0, ones, 1.0), made_up = mean_entropy(logits, ones, count, 0.0);
    if (threadIdx.x == 0) {
        put(loss, happened + made_up);
    }
}

extern "C" __global__ void __launch_bounds__(256) bce_backward(const float* logits, u64 ones, const float* scale,
                                                               u64 count, float* d) {
    for (u64 i = THREAD_OF_GRID; i < count; i += THREADS_OF_GRID) {
        double target = i < ones ? 1.0 : 0.0, factor = (double)*scale / (double)(i < ones ? ones : count - ones);
        put(d + i, (float)(entropy_slope((double)logits[i], target) * factor));
    }
}

extern "C" __global__ void __launch_bounds__(256) squares_of_all(const AdamTensor* tensors, u32 count, u64 pieces,
                                                                 double* partials) {
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const AdamTensor& tensor = entry_of(tensors, count, piece);
        u64 begin = (piece - tensor.before) * SQUARES_PIECE, end = min64(tensor.count, begin + SQUARES_PIECE);
        double sum = 0.0;
        for (u64 i = begin + threadIdx.x; i < end; i += SUM_THREADS) {
            sum += (double)tensor.gradient[i] * (double)tensor.gradient[i];
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            put(partials + piece, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) bound_norm(const double* partials, u64 pieces, float most,
                                                             const float* loss, float* bound) {
    if (blockIdx.x != 0) {
        return;
    }
    double sum = 0.0;
    for (u64 piece = threadIdx.x; piece < pieces; piece += SUM_THREADS) {
        sum += partials[piece];
    }
    float norm = (float)sqrt(block_sum(sum));
    if (threadIdx.x == 0) {
        bool sound = is_finite(norm) && is_finite(*loss);
        put(bound, norm);
        put(bound + 1, !sound ? 0.0f : norm > most ? most / norm : 1.0f);
    }
}
