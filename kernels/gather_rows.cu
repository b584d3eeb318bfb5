// Gather, scatter and fill of rows.
//
//   gather:   to[i] = from[list[i]]     i in 0..count; zeros where list[i] names no row
//   scatter:  to[list[i]] = from[i]     nothing where list[i] names no row; no row is named twice
//   fill:     to[list[i].place] = *list[i].address    zeros for an address of u64::MAX, nothing for a place that is
//                                                     not below `rows`; no place is named twice
//
// `width` bytes of each row are copied; bytes of a stride beyond it are left alone. The table (`from` of a gather,
// `to` of a scatter) is memory of the device or mapped memory of the host: the kernel does not ask. `list` holds
// row numbers of 32 bits, or of 64 if `wide`; u32::MAX or u64::MAX means "no row" and is no mistake. Any other
// number that is not below `rows` is counted in `*errors`, which the caller has set, and treated as "no row".
//
// Launch: one kernel per width of a column, gather_rows_16, _8, _4, _1. The largest V is right that divides both
// addresses, both strides and the width (`vector_bytes`); 2^lanes_log2 lanes copy a row (`lanes_log2`). Blocks of
// 256 threads; grid: count * lanes / (256 * ROWS_AT_ONCE) rounded up, at least 1, and capped at what the caller
// lets it have (8 blocks per multiprocessor fill a GPU; through the bus 2 are enough and leave the rest to others).
// Any grid of up to 2^29 threads gives the same bytes. `count` and `width` are 2^31 at most, since rows of a list and
// columns of a row are counted in 32 bits, by several at a time; rows of a table are counted in 64.
//
// Registers by NVRTC 13.0, sm_80/sm_90: fill_rows_1 56/56, fill_rows_4 60/62, fill_rows_8 64/64, fill_rows_16 72/72,
// gather_rows_1 48/51, gather_rows_4 64/64, gather_rows_8 64/64, gather_rows_16 64/64, scatter_rows_1 40/42,
// scatter_rows_4 40/40, scatter_rows_8 48/48, scatter_rows_16 64/61. No spills.
#include "rows.cuh"

#define LISTED_KERNEL(NAME, COLUMN, WAY)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) NAME(                                                          \
        const u8* from, u64 from_stride, u64 rows, const void* list, u32 wide, u32 count, u8* to, u64 to_stride,     \
        u32 width, u32 lanes_log2, u32* errors) {                                                                    \
        RowCopy call = {from, to, from_stride, to_stride, width, list, count, rows, errors, lanes_log2, wide != 0};  \
        copy_rows<COLUMN, WAY>(call);                                                                                \
    }

#define ROW_KERNELS(V, COLUMN)                                                                                       \
    LISTED_KERNEL(gather_rows_##V, COLUMN, GATHER)                                                                   \
    LISTED_KERNEL(scatter_rows_##V, COLUMN, SCATTER)                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 2) fill_rows_##V(                                              \
        const u64* list, u32 count, u8* to, u64 to_stride, u64 rows, u32 width, u32 lanes_log2) {                    \
        RowCopy call = {nullptr, to, 0, to_stride, width, list, count, rows, nullptr, lanes_log2, true};             \
        copy_rows<COLUMN, FILL>(call);                                                                               \
    }

ROW_KERNELS(16, uint4)
ROW_KERNELS(8, uint2)
ROW_KERNELS(4, u32)
ROW_KERNELS(1, u8)
