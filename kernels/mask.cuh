// Dropout's masks: factors that follow from a key and a place alone, so that the backward draws what the forward drew.
// The twin is src/nn/cpu/dropout.rs.
#ifndef EVERGRAPH_MASK_CUH
#define EVERGRAPH_MASK_CUH

#include "math.cuh"
#include "rng.cuh"

// A value stays and counts `keep` times unless the 16 bits drawn for it are below `drop`.
struct Mask {
    u64 prefix;
    u32 drop;
    float keep;

    FN float factor(u64 index) const {
        if (drop == 0) {
            return 1.0f;
        }
        u64 random = rng_absorb(prefix, index / 4) >> (16 * (index % 4));
        return (random & 0xFFFF) < drop ? 0.0f : keep;
    }

    // What becomes of `value` at a place; a dropped one is 0 even where it is no number.
    FN float apply(u64 index, float value) const {
        float counts = factor(index);
        return counts == 0.0f ? 0.0f : MUL(value, counts);
    }
};

#endif
