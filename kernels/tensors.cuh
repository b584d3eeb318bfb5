// Tensors that one launch goes through, each cut into pieces of the same length; a block finds the tensor of its piece.
#ifndef EVERGRAPH_TENSORS_CUH
#define EVERGRAPH_TENSORS_CUH

#include "portable.cuh"

// What the optimizer knows of a tensor; a kernel that reads gradients alone finds nothing in the first three.
struct AdamTensor {
    float* weights;
    float* first;
    float* second;
    const float* gradient;
    // Values of each.
    u64 count;
    // Pieces of the tensors before this one in the table.
    u64 before;
};

// The last of `count` tensors that begins at `piece` or before: the one that has it, by halves.
FN const AdamTensor& tensor_of(const AdamTensor* tensors, u32 count, u64 piece) {
    u32 low = 0;
    for (u32 left = count; left > 1;) {
        u32 half = left / 2;
        if (tensors[low + half].before <= piece) {
            low += half;
            left -= half;
        } else {
            left = half;
        }
    }
    return tensors[low];
}

#endif
