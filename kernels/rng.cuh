// Counter-based random numbers: a number is a pure function of a key of four 64-bit words, each taken in by one step
// of SplitMix64. The twin is src/device/rng.rs, which explains more; both give the same bits.
#ifndef EVERGRAPH_RNG_CUH
#define EVERGRAPH_RNG_CUH

#include "portable.cuh"

#define RNG_START 0x243F6A8885A308D3ULL

FN u64 rng_mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

// The state after one more word of a key.
FN u64 rng_absorb(u64 state, u64 word) { return rng_mix(state + (word + 1) * 0x9E3779B97F4A7C15ULL); }

// The state after the first three words; `rng_absorb` with the fourth gives the number.
FN u64 rng_prefix(u64 a, u64 b, u64 c) { return rng_absorb(rng_absorb(rng_absorb(RNG_START, a), b), c); }

// `random` scaled to 0..n: the upper half of their product.
FN u32 rng_scale(u64 random, u32 n) {
    u64 high = (random >> 32) * n;
    u64 low = (random & 0xFFFFFFFFu) * n;
    return (u32)((high + (low >> 32)) >> 32);
}

#endif
