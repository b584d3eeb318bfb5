// Sums in 64 bits over the threads of a block, in an order that follows from the block's size alone.
#ifndef EVERGRAPH_SUMS_CUH
#define EVERGRAPH_SUMS_CUH

#include "math.cuh"

// Threads of a block that sums.
#define SUM_THREADS 256u

FN bool is_finite(float x) { return fabsf(x) <= 3.4028234e38f; }

// The sum over the threads of a block of SUM_THREADS, in all of them.
FN double block_sum(double x) {
    __shared__ double of_warp[SUM_THREADS / 32];
    for (int other = 16; other > 0; other /= 2) {
        x += __shfl_xor_sync(0xFFFFFFFFu, x, other);
    }
    if ((threadIdx.x & 31) == 0) {
        of_warp[threadIdx.x / 32] = x;
    }
    __syncthreads();
    double sum = 0.0;
    for (u32 warp = 0; warp < SUM_THREADS / 32; warp++) {
        sum += of_warp[warp];
    }
    // The next sum writes what was just read.
    __syncthreads();
    return sum;
}

#endif
