// Every kernel by its name, compiled for the host: what the simulated GPU (simulated.cpp) and the stand-in driver
// (driver.cpp) run.
#pragma once

#include "../kernels_host/emulator.hpp"

#include "../../../kernels/adam.cu"
#include "../../../kernels/attention.cu"
#include "../../../kernels/distinct.cu"
#include "../../../kernels/elementwise.cu"
#include "../../../kernels/gather_rows.cu"
#include "../../../kernels/gru.cu"
#include "../../../kernels/ingest.cu"
#include "../../../kernels/joined.cu"
#include "../../../kernels/layer_norm.cu"
#include "../../../kernels/linear.cu"
#include "../../../kernels/loss.cu"
#include "../../../kernels/mixing.cu"
#include "../../../kernels/pieces.cu"
#include "../../../kernels/reduce.cu"
#include "../../../kernels/sample.cu"
#include "../../../kernels/slot_rows.cu"
#include "../../../kernels/time_encoding.cu"

#include <string>
#include <tuple>
#include <utility>

typedef std::vector<std::string> Arguments;

static u64 order = 1;

// Calls `kernel` with arguments whose bytes are `given`; nothing where they are not its own.
template <class... P, size_t... I>
static bool call(void (*kernel)(P...), const Arguments& given, unsigned blocks, unsigned threads,
                 std::index_sequence<I...>) {
    const size_t bytes[] = {sizeof(P)...};
    if (given.size() != sizeof...(P)) return false;
    for (size_t i = 0; i < given.size(); i++) if (given[i].size() != bytes[i]) return false;
    std::tuple<P...> values;
    (std::memcpy((void*)&std::get<I>(values), given[I].data(), sizeof(P)), ...);
    gpu::launch(blocks, threads, order++, [&] { kernel(std::get<I>(values)...); });
    return true;
}

template <class... P>
static bool call(void (*kernel)(P...), const Arguments& given, unsigned blocks, unsigned threads) {
    return call(kernel, given, blocks, threads, std::index_sequence_for<P...>());
}

template <class... P> static std::vector<size_t> parameter_bytes(void (*)(P...)) { return {sizeof(P)...}; }

struct Kernel {
    const char* name;
    // Bytes of each parameter.
    std::vector<size_t> parameters;
    std::function<bool(const Arguments&, unsigned, unsigned)> run;
};

#define KERNEL(NAME) \
    {#NAME, parameter_bytes(NAME), [](const Arguments& a, unsigned b, unsigned t) { return call(NAME, a, b, t); }}
#define ROWS(V) KERNEL(gather_rows_##V), KERNEL(scatter_rows_##V), KERNEL(fill_rows_##V)
#define SAMPLE(W) KERNEL(sample_recent_##W), KERNEL(sample_uniform_##W)
#define MIXING_OF(K, H) KERNEL(mixing_forward_##K##_##H), KERNEL(mixing_backward_##K##_##H)
#define ATTENTION(H, C) KERNEL(attention_forward_##H##_##C), KERNEL(attention_backward_##H##_##C)

static const std::vector<Kernel> kernels = {
    ROWS(16), ROWS(8), ROWS(4), ROWS(1),
    SAMPLE(8), SAMPLE(16), SAMPLE(32),
    KERNEL(distinct_insert), KERNEL(distinct_count), KERNEL(distinct_number), KERNEL(distinct_spread),
    KERNEL(ingest),
    ATTENTION(1, 4), ATTENTION(1, 8), ATTENTION(1, 12), ATTENTION(1, 16), ATTENTION(2, 4),
    ATTENTION(2, 8), ATTENTION(2, 12), ATTENTION(2, 16), ATTENTION(4, 4), ATTENTION(4, 8),
    KERNEL(gru_forward), KERNEL(gru_backward), KERNEL(adam), KERNEL(adam_bounded_all), KERNEL(sum_pieces),
    KERNEL(layer_norm_forward), KERNEL(layer_norm_parameters), KERNEL(layer_norm_backward),
    KERNEL(time_encode), KERNEL(time_backward),
    KERNEL(linear_forward), KERNEL(linear_input), KERNEL(linear_weights),
    KERNEL(join_rows), KERNEL(add_rows), KERNEL(spread_rows), KERNEL(relu_backward), KERNEL(drop_out),
    KERNEL(follow_list),
    KERNEL(add_values), KERNEL(accumulate), KERNEL(multiply_values), KERNEL(scale_values), KERNEL(relu),
    KERNEL(gelu), KERNEL(gelu_backward), KERNEL(rnn), KERNEL(rnn_backward),
    KERNEL(reduce_slots), KERNEL(spread_slots), KERNEL(clear_rows), KERNEL(clear_empty), KERNEL(put_rows),
    KERNEL(slot_rows), MIXING_OF(16, 16), MIXING_OF(32, 16), MIXING_OF(32, 32),
    KERNEL(bce), KERNEL(bce_backward), KERNEL(squares_of_all), KERNEL(bound_norm),
};
