// Finds ids in a table of the row cache with the function of the kernel. Standard input: number of buckets, of slots
// and of ids as u32, then the buckets, the generations, the ids. Standard output: a slot, or all ones, per id.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../../kernels/row_cache.cuh"

template <class T>
static std::vector<T> read(size_t count) {
    std::vector<T> values(count);
    if (std::fread(values.data(), sizeof(T), count, stdin) != count) {
        std::fputs("the input is too short\n", stderr);
        std::exit(1);
    }
    return values;
}

int main() {
    std::vector<u32> counts = read<u32>(3);
    std::vector<RowCacheBucket> buckets = read<RowCacheBucket>(counts[0]);
    std::vector<u32> generations = read<u32>(counts[1]);
    std::vector<u64> ids = read<u64>(counts[2]);
    RowCacheTable table = {buckets.data(), counts[0], generations.data()};
    for (u64 id : ids) {
        u32 slot = row_cache_find(table, id);
        std::fwrite(&slot, sizeof slot, 1, stdout);
    }
}
