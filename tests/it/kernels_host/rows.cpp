// Runs gather_rows.cu on what a test sends. See rows.rs for what stands in a job.
#include "emulator.hpp"

#include "../../../kernels/gather_rows.cu"

// Copies `bytes` to an address that is `offset` behind a multiple of 128, with room around it.
static u8* place(std::vector<u8>& room, const std::vector<u8>& bytes, u64 offset) {
    room.assign(bytes.size() + 512, 0xA5);
    u8* start = (u8*)(((uintptr_t)room.data() + 255) / 128 * 128) + offset;
    if (!bytes.empty()) std::memcpy(start, bytes.data(), bytes.size());
    return start;
}

// For each address and width: the widest column, log2 of the lanes, and the shift.
static void arithmetic() {
    auto addresses = gpu::take<u64>(), widths = gpu::take<u64>();
    std::vector<u32> outputs;
    for (size_t i = 0; i < addresses.size(); i++) {
        u32 vector = vector_bytes(addresses[i] | widths[i]);
        outputs.insert(outputs.end(),
                       {vector, lanes_log2(widths[i], vector), row_shift(addresses[i], widths[i], vector)});
    }
    gpu::give(outputs);
}

int main() {
    while (gpu::more()) {
        auto number = gpu::take<u64>();
        if (number.empty()) {
            arithmetic();
            continue;
        }
        u64 scatter = number[0], wide = number[1], width = number[2], from_stride = number[3], to_stride = number[4];
        u64 rows = number[5], count = number[6], from_offset = number[7], to_offset = number[8], grid = number[9];
        auto from_bytes = gpu::take<u8>();
        auto to_bytes = gpu::take<u8>();
        auto list = gpu::take<u8>();
        std::vector<u8> from_room, to_room;
        u8* from = place(from_room, from_bytes, from_offset);
        u8* to = place(to_room, to_bytes, to_offset);
        gpu::watched.clear();
        gpu::watch(to, to_bytes.size());
        u32 errors = 0;
        u32 vector = vector_bytes((u64)from | (u64)to | from_stride | to_stride | width);
        u32 lanes = lanes_log2(width, vector);
        auto kernel = [&] {
#define CASE(V)                                                                                                      \
    case V:                                                                                                          \
        return (scatter ? scatter_rows_##V : gather_rows_##V)(from, from_stride, rows, list.data(), (u32)wide, count, \
                                                              to, to_stride, width, lanes, &errors);
            switch (vector) { CASE(16) CASE(8) CASE(4) CASE(1) }
        };
        gpu::launch((unsigned)grid, 64, number[10], kernel);
        u32 counts[3] = {errors, vector, lanes};
        gpu::give(counts, 3);
        gpu::give(to, to_bytes.size());
        gpu::give(gpu::watched[0].stores);
    }
}
