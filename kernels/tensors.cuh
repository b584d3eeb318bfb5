// Tensors that one launch goes through, each cut into pieces of the same length; a block finds the tensor of its piece.
#ifndef EVERGRAPH_TENSORS_CUH
#define EVERGRAPH_TENSORS_CUH

#include "tables.cuh"

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

#endif
