// A GPU for one kernel launch at a time, simulated by the CPU: a kernel's text is compiled as C++ behind this file,
// and its threads run as coroutines of one thread, block after block.
//
// What a block's threads do together works as on a GPU: a vote or shuffle waits until every lane of its mask has
// come to it, a barrier for every thread of the block. Where that never happens (a lane of the mask has ended, or
// waits for something else) the launch ends with a message, where a GPU would hang or return anything. Between such
// places threads run in an order that is drawn from a seed, anew each time, and they may change turns at each atomic
// operation: what depends on the order shows when the seed changes.
//
// Stores by `put` are counted per byte where somebody watches (`watch`).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "coroutine.hpp"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct Dimensions { unsigned x = 1, y = 1, z = 1; };

static Dimensions threadIdx, blockIdx, blockDim, gridDim;

namespace gpu {

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    std::exit(1);
}

// --- counted stores ---

struct Watched { uintptr_t begin = 0; std::vector<uint8_t> stores; };
static std::vector<Watched> watched;

inline void watch(const void* begin, size_t bytes) {
    watched.push_back({(uintptr_t)begin, std::vector<uint8_t>(bytes, 0)});
}

inline void stored(const void* to, size_t bytes) {
    if (watched.empty()) return;
    for (auto& range : watched) {
        uintptr_t at = (uintptr_t)to - range.begin;
        if (at < range.stores.size()) {
            if (at + bytes > range.stores.size()) fail("a store ends behind its buffer");
            for (size_t i = 0; i < bytes; i++) range.stores[at + i]++;
            return;
        }
    }
    fail("a store outside of every buffer");
}

// --- threads ---

enum class Wait { Nothing, Lanes, Block };

struct Thread {
    Coroutine coroutine;
    bool done = false;
    Wait wait = Wait::Nothing;
    unsigned mask = 0;
    uint64_t given = 0;
    uint64_t seen[32];
};

static std::vector<Thread> threads;
static unsigned current;
static std::function<void()> body;
static uint64_t order;

SCHEDULER uint64_t draw(uint64_t n) {
    order ^= order << 13, order ^= order >> 7, order ^= order << 17;
    return order % n;
}

inline void pause() { threads[current].coroutine.leave(); }

inline void enter() {
    body();
    threads[current].done = true;
    pause();
}

// Gives `value` to the lanes of `mask`, and returns what each of them gave.
inline const uint64_t* exchange(unsigned mask, uint64_t value) {
    Thread& self = threads[current];
    if (!(mask >> (current % 32) & 1)) fail("a lane is not in its own mask");
    self.wait = Wait::Lanes, self.mask = mask, self.given = value;
    pause();
    return self.seen;
}

// Lets the lanes go on that wait for `lane`'s mask, if all of them do.
SCHEDULER bool release_lanes(Thread* threads, unsigned count, unsigned lane) {
    unsigned warp = lane / 32 * 32, mask = threads[lane].mask;
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        if (warp + i >= count) return false;
        const Thread& other = threads[warp + i];
        if (other.wait != Wait::Lanes || other.mask != mask) return false;
    }
    uint64_t given[32];
    for (unsigned i = 0; i < 32; i++) given[i] = mask >> i & 1 ? threads[warp + i].given : 0x5A5A5A5A5A5A5A5A;
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        std::memcpy(threads[warp + i].seen, given, sizeof given);
        threads[warp + i].wait = Wait::Nothing;
    }
    return true;
}

SCHEDULER bool release_block(Thread* threads, unsigned count) {
    for (unsigned i = 0; i < count; i++) if (!threads[i].done && threads[i].wait != Wait::Block) return false;
    for (unsigned i = 0; i < count; i++) threads[i].wait = Wait::Nothing;
    return true;
}

// Runs a block's threads in drawn orders until all are done. `ready` has room for as many.
SCHEDULER void run_block(Thread* threads, unsigned count, unsigned* ready) {
    for (unsigned i = 0; i < count; i++) {
        threads[i].done = false, threads[i].wait = Wait::Nothing;
        threads[i].coroutine.begin(enter);
    }
    for (;;) {
        unsigned left = 0;
        bool all_done = true;
        for (unsigned i = 0; i < count; i++) {
            all_done &= threads[i].done;
            if (!threads[i].done && threads[i].wait == Wait::Nothing) ready[left++] = i;
        }
        if (all_done) return;
        for (; left > 0; left--) {
            unsigned drawn = draw(left);
            current = ready[drawn];
            ready[drawn] = ready[left - 1];
            threadIdx.x = current;
            threads[current].coroutine.enter();
        }
        bool released = false, moves = false, waits = false;
        for (unsigned i = 0; i < count; i++) {
            if (!threads[i].done && threads[i].wait == Wait::Lanes) released |= release_lanes(threads, count, i);
        }
        for (unsigned i = 0; i < count; i++) {
            moves |= !threads[i].done && threads[i].wait == Wait::Nothing;
            waits |= !threads[i].done;
        }
        if (!moves && waits && !released && !release_block(threads, count)) {
            for (unsigned i = 0; i < count; i++) {
                if (!threads[i].done) threadIdx.x = i;
            }
            fail("threads wait for lanes that do not come");
        }
    }
}

// Runs `kernel` for every thread of `grid` blocks of `block` threads.
inline void launch(unsigned grid, unsigned block, uint64_t seed, std::function<void()> kernel) {
    order = seed * 0x9E3779B97F4A7C15 + 0x243F6A8885A308D3;
    gridDim.x = grid, blockDim.x = block, body = std::move(kernel);
    if (threads.size() != block) {
        threads.clear();
        threads.resize(block);
    }
    std::vector<unsigned> blocks(grid), ready(block);
    for (unsigned i = 0; i < grid; i++) blocks[i] = i;
    for (unsigned left = grid; left > 0; left--) {
        std::swap(blocks[draw(left)], blocks[left - 1]);
        blockIdx.x = blocks[left - 1];
        run_block(threads.data(), block, ready.data());
    }
}

template <class T> uint64_t bits(T value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

// Sometimes another thread goes on before an atomic operation.
inline void maybe_pause() { if (draw(4) == 0) pause(); }

// --- what a test reads and writes: arrays, each as its number of bytes in 64 bits and the bytes ---

template <class T> std::vector<T> take() {
    uint64_t bytes = 0;
    if (std::fread(&bytes, 8, 1, stdin) != 1 || bytes % sizeof(T) != 0) {
        std::fprintf(stderr, "an array of %zu byte values was expected, found %zu bytes\n", sizeof(T), (size_t)bytes);
        std::exit(1);
    }
    std::vector<T> values(bytes / sizeof(T));
    if (bytes > 0 && std::fread(values.data(), 1, bytes, stdin) != bytes) std::exit(1);
    return values;
}

inline bool more() {
    int next = std::getc(stdin);
    if (next == EOF) return false;
    std::ungetc(next, stdin);
    return true;
}

template <class T> void give(const T* values, size_t count) {
    uint64_t bytes = count * sizeof(T);
    std::fwrite(&bytes, 8, 1, stdout);
    if (bytes > 0) std::fwrite(values, 1, bytes, stdout);
}

template <class T> void give(const std::vector<T>& values) { give(values.data(), values.size()); }

} // namespace GPU

#define ON_STORE(to, bytes) gpu::stored(to, bytes)

// --- the functions of a GPU that kernels use ---

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const uint64_t* seen = gpu::exchange(mask, predicate != 0);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++) if (mask >> i & 1) votes |= (unsigned)seen[i] << i;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
static inline void __syncwarp(unsigned mask = ~0u) { gpu::exchange(mask, 0); }

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const uint64_t* seen = gpu::exchange(mask, gpu::bits(value));
    unsigned lane = gpu::current % 32;
    unsigned from = lane / width * width + (unsigned)source % width;
    if (!(mask >> from & 1)) gpu::fail("a shuffle reads a lane outside of its mask");
    T found;
    std::memcpy(&found, &seen[from], sizeof found);
    return found;
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
    return __shfl_sync(mask, value, (int)((gpu::current % width) ^ other), width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned lane = gpu::current % width;
    return __shfl_sync(mask, value, (int)(lane >= delta ? lane - delta : lane), width);
}

static inline void __syncthreads() {
    gpu::threads[gpu::current].wait = gpu::Wait::Block;
    gpu::pause();
}

// How many threads of the block vote yes. The barriers keep one count from the next.
static inline int __syncthreads_count(int predicate) {
    static int votes;
    __syncthreads();
    if (threadIdx.x == 0) votes = 0;
    __syncthreads();
    votes += predicate != 0;
    __syncthreads();
    return votes;
}

// Arithmetic rounded one by one, as it is written. Elsewhere the compiler fuses products and sums, as one for a GPU
// does: it must see neither what a result is made of nor what an operand is.
template <class T> static inline T rounded(T result) {
    asm("" : "+m"(result));
    return result;
}
static inline float __fmul_rn(float a, float b) { return rounded(a * b); }
static inline float __fadd_rn(float a, float b) { return rounded(rounded(a) + rounded(b)); }
static inline double __dmul_rn(double a, double b) { return rounded(a * b); }
static inline double __dadd_rn(double a, double b) { return rounded(rounded(a) + rounded(b)); }
static inline unsigned __float_as_uint(float x) { return (unsigned)gpu::bits(x); }
static inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }

template <class T> T atomicAdd(T* at, T value) {
    gpu::maybe_pause();
    T before = *at;
    *at = before + value;
    return before;
}
template <class T> T atomicMin(T* at, T value) {
    gpu::maybe_pause();
    T before = *at;
    if (value < before) *at = value;
    return before;
}
template <class T> T atomicCAS(T* at, T expected, T value) {
    gpu::maybe_pause();
    T before = *at;
    if (before == expected) *at = value;
    return before;
}
