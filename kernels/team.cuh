// A team: W neighboring lanes of a warp that serve one request together, W in {8, 16, 32}. Teams of one warp may go
// different ways; what a team does together involves its own lanes only.
#ifndef EVERGRAPH_TEAM_CUH
#define EVERGRAPH_TEAM_CUH

#include "portable.cuh"

template <u32 W>
struct Team {
    // This thread's number in the team.
    u32 lane;
    // The team's lanes in the warp.
    u32 mask;

    FN Team() {
        u32 in_warp = threadIdx.x & 31;
        lane = in_warp & (W - 1);
        mask = (0xFFFFFFFFu >> (32 - W)) << (in_warp - lane);
    }

    // Bit i: the value of lane i.
    FN u32 vote(bool yes) const {
        u32 shift = W == 32 ? 0 : (threadIdx.x & 31) - lane;
        return (__ballot_sync(mask, yes) & mask) >> shift;
    }

    // What lane `i` holds.
    template <class T>
    FN T from(T value, u32 i) const {
        return __shfl_sync(mask, value, (int)i, (int)W);
    }

    // Bits of the lanes before this one.
    FN u32 earlier(u32 votes) const { return votes & ((1u << lane) - 1); }

    // The first i in low..end for which `before(i)` does not hold, or `end`; it holds for all up to there and for none
    // behind. W places are looked at together, so that a step leaves one part of W + 1: among 256 two steps wait for
    // memory with 16 lanes, where halving waits eight times.
    template <class Before>
    FN u32 search(u32 low, u32 end, Before before) const {
        while (low < end) {
            u32 step = (end - low) / (W + 1) + 1;
            u32 place = low + step * (lane + 1) - 1;
            u32 passed = __popc(vote(place < end && before(place)));
            low += step * passed;
            // The next place looked at is not before, or is the end or behind it.
            end = min32(end, low + step - 1);
        }
        return low;
    }
};

// The place of the n-th bit that is set, from 0, of more than n.
FN u32 set_bit(u32 bits, u32 n) {
    for (; n > 0; n--) {
        bits &= bits - 1;
    }
    return __ffs((int)bits) - 1;
}

#endif
