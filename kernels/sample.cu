// Temporal neighbor sampling: for each seed, a (node, time) pair, up to K edges of the node strictly before the time,
// inside view and window, laid out as the CPU's MessageFlowGraph lays them out (src/sampler/mod.rs):
//
//   counts[s] u32, and at s * K + k: neighbors u32, edges u64, times i64, deltas f32 = (f32)(seed time - edge time)
//
// sample_recent_W takes the newest. sample_uniform_W draws without replacement by Floyd's algorithm, lane s doing step
// s, so K <= W. Both give bit for bit what the CPU gives, whatever the grid.
//
// W in {8, 16, 32} lanes of a warp serve one seed: they search the node's blocks and the block's entries W + 1
// ways at a time, and read runs of entries together. W = 16 suits K of 9 to 16: two seeds per warp, and two steps of
// search in a block of 256 entries, as 32 lanes would need. For entries in mapped memory of the host a step asks for W
// lines where halving asks for one at a time: fewer waits, more requests.
//
// Launch: blocks of 128 threads; grid: seeds * W / 128 rounded up, or any less. How many seeds there are is read from
// memory of the GPU (`seeds.count`), so the kernels of a further layer follow without the host: see distinct.cu.
//
// Registers by nvcc 13.0 -Xptxas -v, sm_80/sm_90: sample_recent_8 46/48, sample_recent_16 46/48, sample_recent_32
// 44/46, sample_uniform_8 47/45, sample_uniform_16 47/45, sample_uniform_32 44/45. No spills.
#include "sample.cuh"

#define SAMPLE_KERNELS(W)                                                                                            \
    extern "C" __global__ void __launch_bounds__(128, 8)                                                             \
        sample_recent_##W(Graph graph, View view, Request request, Seeds seeds, Slots slots) {                       \
        sample_seeds<W, false>(graph, view, request, seeds, slots);                                                  \
    }                                                                                                                \
    extern "C" __global__ void __launch_bounds__(128, 8)                                                             \
        sample_uniform_##W(Graph graph, View view, Request request, Seeds seeds, Slots slots) {                      \
        sample_seeds<W, true>(graph, view, request, seeds, slots);                                                   \
    }

SAMPLE_KERNELS(8)
SAMPLE_KERNELS(16)
SAMPLE_KERNELS(32)
