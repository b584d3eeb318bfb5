// What every kernel stands on: sized integers, qualifiers, and stores that a test can count.
//
// The layout of this folder. NAME.cu holds kernels, and what they compute with stands in NAME.cuh; both are also
// plain C++17. A file names what it needs by #include "NAME.cuh", only from this folder and nothing else: no header
// of the system or of CUDA. So a kernel is built in three ways from one text:
//   - at run time by NVRTC, which gets the .cuh files as headers by their names,
//   - by nvcc, with this folder as the folder of the file,
//   - by a C++ compiler, behind tests/it/kernels_host/emulator.hpp, which simulates a GPU.
// Every header is guarded, so the three agree on what is read once.
//
// Kernels are extern "C" and named after their file. Sizes are 64-bit where they are products; a kernel's grid may
// have any size, since each one walks its work in strides of the grid.
#ifndef EVERGRAPH_PORTABLE_CUH
#define EVERGRAPH_PORTABLE_CUH

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

// A function of one thread, inlined: a device has no cheap calls.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define FN __device__ __forceinline__
#else
#define FN inline
#endif

// What a test observes of each store by `put`.
#ifndef ON_STORE
#define ON_STORE(to, bytes) ((void)0)
#endif

// Stores what somebody outside of the kernel will read.
template <class T>
FN void put(T* to, T value) {
    ON_STORE(to, sizeof(T));
    *to = value;
}

// Threads of all blocks before this one in their order, and how many there are.
#define THREAD_OF_GRID ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS_OF_GRID ((u64)gridDim.x * blockDim.x)

FN u32 min32(u32 a, u32 b) { return a < b ? a : b; }
FN u64 min64(u64 a, u64 b) { return a < b ? a : b; }
FN i64 max64(i64 a, i64 b) { return a > b ? a : b; }

// a - b, or the least i64 where that is less. Neither argument of a caller makes it exceed the largest: b >= 0.
FN i64 minus_saturating(i64 a, i64 b) {
    i64 least = (i64)(1ULL << 63);
    return a < least + b ? least : a - b;
}

// later - earlier in f32, of any two times with later >= earlier; what exceeds an i64 counts as the largest one.
FN float since(i64 later, i64 earlier) {
    u64 distance = (u64)later - (u64)earlier;
    u64 most = ~0ULL >> 1;
    return (float)(i64)(distance > most ? most : distance);
}

#endif
