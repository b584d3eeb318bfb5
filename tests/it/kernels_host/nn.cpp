// Layers on a GPU: runs the kernels of attention, time encoding, GRU, layer normalization and Adam, and does the
// matrix products around them in plain loops. See nn.rs for what stands in a job.
#include "emulator.hpp"

#include "../../../kernels/attention.cu"
#include "../../../kernels/time_encoding.cu"
#include "../../../kernels/gru.cu"
#include "../../../kernels/layer_norm.cu"
#include "../../../kernels/adam.cu"
#include "../../../kernels/pieces.cu"

typedef std::vector<float> Floats;

static u64 order = 1;

template <class K> static void run(unsigned grid, unsigned block, K kernel) {
    gpu::launch(grid, block, order++, kernel);
}

// A matrix inside of another: `rows` rows, `stride` apart.
struct Matrix { float* at; size_t rows, cols, stride; };
static Matrix matrix(Floats& values, size_t cols) { return {values.data(), values.size() / cols, cols, cols}; }
static Matrix columns(Matrix m, size_t first, size_t cols) { return {m.at + first, m.rows, cols, m.stride}; }
static Matrix rows_of(Matrix m, size_t first, size_t rows) { return {m.at + first * m.stride, rows, m.cols, m.stride}; }

// out (+)= factor a b, with b turned around or a turned around if asked for.
static void product(Matrix out, Matrix a, Matrix b, bool turn_a, bool turn_b, double factor, bool add) {
    size_t inner = turn_a ? a.rows : a.cols;
    for (size_t i = 0; i < out.rows; i++) for (size_t j = 0; j < out.cols; j++) {
        double sum = 0;
        for (size_t k = 0; k < inner; k++) {
            double x = turn_a ? a.at[k * a.stride + i] : a.at[i * a.stride + k];
            sum += x * (turn_b ? b.at[j * b.stride + k] : b.at[k * b.stride + j]);
        }
        float& to = out.at[i * out.stride + j];
        to = (float)(factor * sum) + (add ? to : 0.0f);
    }
}

// Fills values with what is no number: whatever is not written shows.
static void poison(Floats& values) { std::fill(values.begin(), values.end(), NAN); }

static Floats summed(Floats& partials, size_t cols) {
    Floats out(cols);
    poison(out);
    PieceSum sum = {out.data(), 0, 0, 1, 1, 0};
    PieceTerm term = {partials.data(), cols, partials.size() / cols};
    run(2, 128, [&] { sum_pieces(&sum, 1, &term, cols); });
    return out;
}

static void time_layer() {
    auto deltas = gpu::take<float>(), w = gpu::take<float>(), b = gpu::take<float>(), d = gpu::take<float>();
    u32 dim = (u32)w.size();
    Floats out(deltas.size() * dim), partials((deltas.size() + PIECE_ROWS - 1) / PIECE_ROWS * 2 * dim);
    poison(out), poison(partials);
    run(3, 256, [&] { time_encode(deltas.data(), w.data(), b.data(), deltas.size(), dim, out.data()); });
    run(2, 128, [&] {
        time_backward(deltas.data(), w.data(), b.data(), d.data(), dim, deltas.size(), dim, partials.data());
    });
    gpu::give(out), gpu::give(summed(partials, 2 * dim));
}

typedef void (*Forward)(AttentionShape, SlotSource, Mask, const float*, float*, float*);
typedef void (*Backward)(AttentionShape, SlotSource, Mask, SlotColumns, const float*, const float*, const float*,
                         const float*, float*, float*);
struct Kernels { u32 heads, lane_columns; Forward forward; Backward backward; };
#define KERNELS(H, C) {H, C, attention_forward_##H##_##C, attention_backward_##H##_##C}
static const Kernels KERNELS_OF_SHAPE[] = {KERNELS(1, 4), KERNELS(1, 8), KERNELS(1, 12), KERNELS(1, 16), KERNELS(2, 4),
                                           KERNELS(2, 8), KERNELS(2, 12), KERNELS(2, 16), KERNELS(4, 4), KERNELS(4, 8)};

static void attention_layer() {
    auto number = gpu::take<u64>(); // seeds, slots, heads, node, edge, time, model; dropout's drop, prefix
    auto keep = gpu::take<float>();
    AttentionShape s = {(u32)number[0], (u32)number[1], (u32)number[2], (u32)number[3],
                        (u32)number[4], (u32)number[5], 0};
    size_t width = s.width(), model = number[6], head = model / s.heads, seeds = s.seeds;
    s.padded = (u32)(width + 15) / 16 * 16;
    auto query = gpu::take<float>(), nodes = gpu::take<float>(), edges = gpu::take<float>();
    auto deltas = gpu::take<float>(), w = gpu::take<float>(), b = gpu::take<float>();
    auto w_q = gpu::take<float>(), w_k = gpu::take<float>(), w_v = gpu::take<float>(), d = gpu::take<float>();
    auto queries = gpu::take<u32>(), slots = gpu::take<u32>(), edge_slots = gpu::take<u32>();
    size_t asked = w_q.size() / model, count = query.size() / asked, block = s.heads * s.padded;
    Floats q(count * model), u(count * block, 0.0f), y(seeds * block);
    Floats weights(seeds * s.heads * s.slots), out(seeds * model);
    product(matrix(q, model), matrix(query, asked), matrix(w_q, asked), false, true, 1.0, false);
    double scale = 1.0 / std::sqrt((double)head);
    auto part = [&](Floats& values, u32 h) { return columns(matrix(values, block), h * s.padded, width); };
    auto rows = [&](Floats& values, u32 h) { return rows_of(matrix(values, width), h * head, head); };
    auto of_head = [&](Floats& values, u32 h) { return columns(matrix(values, model), h * head, head); };
    for (u32 h = 0; h < s.heads; h++) product(part(u, h), of_head(q, h), rows(w_k, h), false, false, scale, false);
    SlotSource source = {queries.empty() ? nullptr : queries.data(), slots.data(),
                         edge_slots.empty() ? nullptr : edge_slots.data(), nodes.data(), edges.data(), deltas.data(),
                         w.data(), b.data(), (u32)count, (u32)(s.node == 0 ? 0xFFFFFFFE : nodes.size() / s.node),
                         (u32)(s.edge == 0 ? 0 : edges.size() / s.edge), 0};
    Mask mask = {number[8], (u32)number[7], keep[0]};
    const Kernels* kernels = nullptr;
    for (auto& one : KERNELS_OF_SHAPE) {
        if (one.heads == s.heads && one.lane_columns * 32 >= s.padded && kernels == nullptr) kernels = &one;
    }
    poison(y), poison(weights);
    run(2, 128, [&] { kernels->forward(s, source, mask, u.data(), y.data(), weights.data()); });
    for (u32 h = 0; h < s.heads; h++) product(of_head(out, h), part(y, h), rows(w_v, h), false, true, 1.0, false);
    gpu::give(out);

    Floats dy(seeds * block, 0.0f), du(seeds * block), dw_k(w_k.size()), dw_v(w_v.size()), dw_q(w_q.size());
    SlotColumns columns_of = {s.node, s.time};
    Floats dx(seeds * s.slots * columns_of.width());
    for (u32 h = 0; h < s.heads; h++) {
        product(rows(dw_v, h), of_head(d, h), part(y, h), true, false, 1.0, false);
        product(part(dy, h), of_head(d, h), rows(w_v, h), false, false, 1.0, false);
    }
    poison(du), poison(dx);
    run(2, 128, [&] {
        kernels->backward(s, source, mask, columns_of, u.data(), y.data(), weights.data(), dy.data(), du.data(),
                          dx.data());
    });
    Floats du_query(count * block, 0.0f), dq(count * model), dquery(query.size()), dnodes(nodes.size(), 0.0f);
    for (size_t i = 0; i < seeds; i++) for (size_t j = 0; j < block; j++) {
        du_query[(queries.empty() ? i : queries[i]) * block + j] += du[i * block + j];
    }
    for (u32 h = 0; h < s.heads; h++) {
        product(rows(dw_k, h), of_head(q, h), part(du_query, h), true, false, scale, false);
        product(of_head(dq, h), part(du_query, h), rows(w_k, h), false, true, scale, false);
    }
    product(matrix(dw_q, asked), matrix(dq, model), matrix(query, asked), true, false, 1.0, false);
    product(matrix(dquery, asked), matrix(dq, model), matrix(w_q, asked), false, false, 1.0, false);
    for (size_t i = 0; i < slots.size(); i++) for (u32 j = 0; slots[i] != NO_ROW && j < s.node; j++) {
        dnodes[slots[i] * s.node + j] += dx[i * columns_of.width() + j];
    }
    Floats partials((deltas.size() + PIECE_ROWS - 1) / PIECE_ROWS * 2 * s.time);
    poison(partials);
    run(3, 128, [&] {
        time_backward(deltas.data(), w.data(), b.data(), dx.data() + s.node, columns_of.width(), deltas.size(), s.time,
                      partials.data());
    });
    gpu::give(dquery), gpu::give(dnodes), gpu::give(dw_q), gpu::give(dw_k), gpu::give(dw_v);
    gpu::give(summed(partials, 2 * s.time));
}

static void gru_layer() {
    auto x = gpu::take<float>(), h = gpu::take<float>(), w_ih = gpu::take<float>(), w_hh = gpu::take<float>();
    auto b_ih = gpu::take<float>(), b_hh = gpu::take<float>(), d = gpu::take<float>();
    size_t width = b_hh.size() / 3, in = w_ih.size() / b_ih.size(), rows = h.size() / width;
    Floats gates(rows * 3 * width), hidden(rows * 3 * width), out(rows * width), dx(x.size());
    for (size_t i = 0; i < gates.size(); i++) gates[i] = b_ih[i % (3 * width)];
    Matrix all = matrix(gates, 3 * width), inner = matrix(w_hh, width);
    product(all, matrix(x, in), matrix(w_ih, in), false, true, 1.0, true);
    product(matrix(hidden, 3 * width), matrix(h, width), inner, false, true, 1.0, false);
    poison(out);
    run(2, 256, [&] { gru_forward(gates.data(), hidden.data(), h.data(), b_hh.data(), rows, (u32)width, out.data()); });
    run(2, 256, [&] { gru_backward(d.data(), gates.data(), hidden.data(), h.data(), rows, (u32)width); });
    product(matrix(dx, in), all, matrix(w_ih, in), false, false, 1.0, false);
    product(matrix(d, width), matrix(hidden, 3 * width), inner, false, false, 1.0, true);
    gpu::give(out), gpu::give(dx), gpu::give(d);
}

static void norm_layer() {
    auto x = gpu::take<float>(), gamma = gpu::take<float>(), beta = gpu::take<float>(), d = gpu::take<float>();
    auto eps = gpu::take<float>();
    u32 cols = (u32)gamma.size();
    u64 rows = x.size() / cols;
    Floats y(x.size()), moments(2 * rows), partials((rows + PIECE_ROWS - 1) / PIECE_ROWS * 2 * cols);
    poison(y), poison(moments), poison(partials);
    run(2, 128, [&] {
        layer_norm_forward(x.data(), gamma.data(), beta.data(), eps[0], rows, cols, y.data(), moments.data());
    });
    run(2, 128, [&] { layer_norm_parameters(d.data(), x.data(), moments.data(), rows, cols, partials.data()); });
    run(2, 128, [&] { layer_norm_backward(d.data(), x.data(), moments.data(), gamma.data(), rows, cols); });
    gpu::give(y), gpu::give(d), gpu::give(summed(partials, 2 * cols));
}

static void adam_steps() {
    auto weights = gpu::take<float>(), gradients = gpu::take<float>(), steps = gpu::take<float>();
    Floats first(weights.size(), 0.0f), second(weights.size(), 0.0f);
    for (size_t t = 0; t < steps.size() / 6; t++) {
        AdamStep step;
        std::memcpy(&step, &steps[6 * t], sizeof step);
        const float* gradient = gradients.data() + t * weights.size();
        run(2, 256, [&] { adam(step, weights.data(), first.data(), second.data(), gradient, weights.size()); });
    }
    gpu::give(weights);
}

int main() {
    void (*layers[])() = {time_layer, attention_layer, gru_layer, norm_layer, adam_steps};
    while (gpu::more()) layers[gpu::take<u64>()[0]]();
}
