// A GPU's graph: takes in uploads by ingest.cu, and samples by sample.cu and distinct.cu. See sample.rs for
// what stands in a job.
#include "emulator.hpp"

#include "../../../kernels/ingest.cu"
#include "../../../kernels/sample.cu"
#include "../../../kernels/distinct.cu"

#include <memory>

static std::vector<NodeBlocks> nodes;
static std::vector<Block> blocks;
static std::vector<std::unique_ptr<Entry[]>> pages;

// Fails where one of the watched bytes was stored to more than once, or, if `all`, not at all.
static void check_stores(bool all) {
    for (auto& range : gpu::watched) {
        for (uint8_t stores : range.stores) {
            if (stores > 1) gpu::fail("a byte was stored to twice");
            if (all && stores == 0) gpu::fail("a byte was not stored to");
        }
    }
    gpu::watched.clear();
}

template <class T> static T* watched(std::vector<T>& values) {
    if (!values.empty()) std::memset((void*)values.data(), 0xCD, values.size() * sizeof(T));
    gpu::watch(values.data(), values.size() * sizeof(T));
    return values.data();
}

static std::vector<Entry*> page_addresses() {
    std::vector<Entry*> addresses;
    for (auto& page : pages) addresses.push_back(page.get());
    return addresses;
}

// Entries, blocks, nodes of the upload; nodes, blocks, pages of the tables; log2 of a page; grid; order of threads.
static void take_upload(const std::vector<u64>& number) {
    auto upload = gpu::take<u8>();
    std::vector<u8> room(upload.size() + 64);
    u8* bytes = (u8*)(((uintptr_t)room.data() + 31) / 32 * 32);
    if (!upload.empty()) std::memcpy(bytes, upload.data(), upload.size());
    u64 page_entries = 1ULL << number[7];
    nodes.resize(number[4], NodeBlocks{0, 0});
    blocks.resize(number[5]);
    while (pages.size() < number[6]) {
        pages.emplace_back(new Entry[page_entries]);
        std::memset((void*)pages.back().get(), 0xCD, page_entries * sizeof(Entry));
    }
    gpu::watch(nodes.data(), nodes.size() * sizeof(NodeBlocks));
    gpu::watch(blocks.data(), blocks.size() * sizeof(Block));
    for (auto& page : pages) gpu::watch(page.get(), page_entries * sizeof(Entry));
    auto addresses = page_addresses();
    gpu::launch((unsigned)number[8], 256, number[9], [&] {
        ingest(bytes, number[1], number[2], number[3], addresses.data(), (u32)number[7], blocks.data(), nodes.data());
    });
    check_stores(false);
}

struct Layer {
    std::vector<u32> nodes, counts, neighbors, next;
    std::vector<u64> edges;
    std::vector<i64> seed_times, times;
    std::vector<float> deltas;
};

static void sample_layer(Layer& layer, u32 seeds, bool uniform, u32 lanes, const View& view, const Request& request,
                         unsigned grid, u64 order) {
    auto addresses = page_addresses();
    Graph graph = {nodes.data(), nodes.size(), blocks.data(), addresses.data()};
    size_t slots = (size_t)seeds * request.fanout;
    layer.counts.resize(seeds), layer.neighbors.resize(slots), layer.edges.resize(slots);
    layer.times.resize(slots), layer.deltas.resize(slots);
    Slots out = {watched(layer.counts), watched(layer.neighbors), watched(layer.edges), watched(layer.times),
                 watched(layer.deltas)};
    Seeds asked = {layer.nodes.data(), layer.seed_times.data(), &seeds};
    auto kernel = lanes == 8    ? (uniform ? sample_uniform_8 : sample_recent_8)
                  : lanes == 16 ? (uniform ? sample_uniform_16 : sample_recent_16)
                                : (uniform ? sample_uniform_32 : sample_recent_32);
    gpu::launch(grid, 128, order, [&] { kernel(graph, view, request, asked, out); });
    check_stores(true);
}

// The seeds of `next` from the slots of `layer`; returns how many.
static u32 next_seeds(Layer& layer, Layer& next, u32 seeds, u32 fanout, unsigned grid, u64 order) {
    u32 slots = seeds * fanout, room = 64, count = 0xCDCDCDCD;
    while (room < 2 * slots) room *= 2;
    std::vector<u32> table(room, NO_SLOT), places(slots), sums((slots + TILE_SLOTS - 1) / TILE_SLOTS);
    layer.next.resize(slots), next.nodes.resize(slots), next.seed_times.resize(slots);
    Pairs pairs = {layer.neighbors.data(), layer.times.data(), &seeds, fanout, 0};
    watched(places), watched(sums), watched(layer.next), watched(next.nodes), watched(next.seed_times);
    gpu::watch(&count, 4);
    gpu::launch(grid, 256, order, [&] { distinct_insert(pairs, order, table.data(), room - 1, places.data()); });
    gpu::launch(grid, 256, order + 1, [&] { distinct_count(pairs, table.data(), places.data(), sums.data()); });
    gpu::launch(grid, 256, order + 2, [&] {
        distinct_number(pairs, table.data(), places.data(), sums.data(), layer.next.data(), next.nodes.data(),
                        next.seed_times.data(), &count);
    });
    gpu::launch(grid, 256, order + 3, [&] { distinct_spread(pairs, table.data(), places.data(), layer.next.data()); });
    check_stores(false);
    if (count > slots) gpu::fail("the number of seeds was not written");
    next.nodes.resize(count), next.seed_times.resize(count);
    return count;
}

// Policy (0 recent, 1 uniform), lanes, layers; bound, since, age; seed, batch, window, layer, fanout; grid; order.
static void respond(const std::vector<u64>& number) {
    Layer layer;
    layer.nodes = gpu::take<u32>();
    layer.seed_times = gpu::take<i64>();
    View view = {number[4], (i64)number[5], (i64)number[6]};
    Request request = {number[7], number[8], (i64)number[9], (u32)number[10], (u32)number[11]};
    unsigned grid = (unsigned)number[12];
    u64 order = number[13];
    for (u64 left = number[3]; left > 0; left--) {
        u32 seeds = (u32)layer.nodes.size();
        sample_layer(layer, seeds, number[1] == 1, (u32)number[2], view, request, grid, order);
        Layer next;
        if (left > 1) next_seeds(layer, next, seeds, request.fanout, grid, order);
        gpu::give(layer.nodes), gpu::give(layer.seed_times), gpu::give(layer.counts), gpu::give(layer.neighbors);
        gpu::give(layer.edges), gpu::give(layer.times), gpu::give(layer.deltas), gpu::give(layer.next);
        layer = std::move(next);
        request.layer += 1;
    }
}

int main() {
    while (gpu::more()) {
        auto number = gpu::take<u64>();
        if (number[0] == 0) take_upload(number);
        else respond(number);
    }
}
