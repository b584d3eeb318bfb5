// Mixing the slots of each seed, column by column: the token mixing block of an MLP-Mixer. The twin is
// src/nn/cpu/slot_mixing.rs.
//
//   N = norm of a column over the K slots of a seed, times gamma_k, plus beta_k       B = W_a N + b_a   A = m1 gelu(B)
//   y = x + m2 (W_b A + b_b)                                                          m1, m2: dropout's factors
//   dO = m2 dy      dA = m1 W_b^T dO      dB = dA gelu'(B)      dN = W_a^T dB     dx = dy + dN through the norm
//   dW_b = sum dO A^T   db_b = sum dO   dW_a = sum dB N^T   db_a = sum dB   dgamma = sum dN unit   dbeta = sum dN
//
// x, y and d f32 [seeds K, columns]; gamma, beta, b_b f32 [K], w_a f32 [H, K], b_a f32 [H], w_b f32 [K, H]. The factor
// of row r and column c of a mask is that of element r padded + c, padded being `columns` up to a multiple of 16, and r
// counting the seeds' H or K rows. mixing_backward has d in place and sums over MIXING_PIECE columns of seeds in
// partials f32 [seeds columns / MIXING_PIECE rounded up, parameters]: the gradients of gamma, beta, w_a, b_a, w_b and
// b_b one behind the other, to be added up by sum_pieces. K >= 1; K and H at most the numbers in a kernel's name.
//
// Launch: mixing_forward: blocks of 128 threads, exactly, a thread to a column of a seed, whose slots and hidden values
// it keeps in shared memory; any grid. mixing_backward: blocks of 64 threads, exactly, a block to a piece; any grid. It
// takes 64 columns at a time: first a thread to a column, as in the forward, then a thread to a parameter, which it
// sums over the 64, so that no addition needs an atomic or another thread. Rows in shared memory are 65 long there, so
// that neighbors read neighboring banks.
//
// Bound by reading shared memory: about two words for each of the 2 K H products of a column forward, and of the 6 K H
// backward; x is read three times, by neighbors from neighbors, and stays near.
//
// The forward has the CPU's bits where that fuses multiply and add; sums of the backward run in another order,
// and agree to rounding.
//
// Registers by NVRTC 13.0, sm_80/sm_90: mixing_backward_16_16 82/74, mixing_backward_32_16 78/72, mixing_backward_32_32
// 76/76, mixing_forward_16_16 56/40, mixing_forward_32_16 64/56, mixing_forward_32_32 58/65. No spills.
#include "mask.cuh"
#include "math.cuh"

// Columns of seeds whose gradients of parameters are summed before sums are.
#define MIXING_PIECE 512u
// Threads of a block, forward and backward.
#define MIXING_THREADS 128u
#define MIXING_TILE 64u

struct Mixing {
    const float* gamma;
    const float* beta;
    const float* w_a;
    const float* b_a;
    const float* w_b;
    const float* b_b;
    Mask first;
    Mask second;
    float eps;
    u32 slots;
    u32 hidden;
    u32 columns;

    // What the mask behind a layer of `rows` rows makes of a value.
    FN float masked(const Mask& mask, u64 seed, u32 rows, u32 row, u32 column, float value) const {
        u64 padded = ((u64)columns + 15) / 16 * 16;
        return mask.apply((seed * rows + row) * padded + column, value);
    }
};

// A column of a seed, of which a thread keeps a word in each row of shared memory, STRIDE apart.
template <u32 STRIDE>
struct MixedColumn {
    u64 seed;
    u32 column;
    float mean;
    float rstd;

    FN u64 slot(const Mixing& m, u32 k) const { return (seed * m.slots + k) * m.columns + column; }

    // The value in a slot, less the mean and over the deviation.
    FN float unit(const Mixing& m, const float* x, u32 k) const { return MUL(ADD(x[slot(m, k)], -mean), rstd); }

    // Normalizes the column into `norm`.
    FN MixedColumn(const Mixing& m, const float* x, u64 position, float* norm)
        : seed(position / m.columns), column((u32)(position % m.columns)), mean(0.0f), rstd(0.0f) {
        for (u32 k = 0; k < m.slots; k++) {
            mean = ADD(mean, x[slot(m, k)]);
        }
        mean = mean / (float)m.slots;
        for (u32 k = 0; k < m.slots; k++) {
            float off = ADD(x[slot(m, k)], -mean);
            rstd = ADD(rstd, MUL(off, off));
        }
        rstd = 1.0f / sqrtf(ADD(rstd / (float)m.slots, m.eps));
        for (u32 k = 0; k < m.slots; k++) {
            norm[k * STRIDE] = ADD(MUL(unit(m, x, k), m.gamma[k]), m.beta[k]);
        }
    }

    // A hidden value before its nonlinearity.
    FN float before(const Mixing& m, const float* norm, u32 h) const {
        float sum = 0.0f;
        for (u32 k = 0; k < m.slots; k++) {
            sum = fmaf(m.w_a[h * m.slots + k], norm[k * STRIDE], sum);
        }
        return ADD(sum, m.b_a[h]);
    }
};

template <u32 SLOTS, u32 HIDDEN>
FN void mix_forward(const Mixing& m, u64 seeds, const float* x, float* y) {
    __shared__ float rows[(SLOTS + HIDDEN) * MIXING_THREADS];
    float* norm = rows + threadIdx.x;
    float* after = rows + SLOTS * MIXING_THREADS + threadIdx.x;
    for (u64 position = THREAD_OF_GRID; position < seeds * m.columns; position += THREADS_OF_GRID) {
        MixedColumn<MIXING_THREADS> at(m, x, position, norm);
        for (u32 h = 0; h < m.hidden; h++) {
            float value = gaussian_unit(at.before(m, norm, h));
            after[h * MIXING_THREADS] = m.masked(m.first, at.seed, m.hidden, h, at.column, value);
        }
        for (u32 k = 0; k < m.slots; k++) {
            float sum = 0.0f;
            for (u32 h = 0; h < m.hidden; h++) {
                sum = fmaf(m.w_b[k * m.hidden + h], after[h * MIXING_THREADS], sum);
            }
            float moved = m.masked(m.second, at.seed, m.slots, k, at.column, ADD(sum, m.b_b[k]));
            put(y + at.slot(m, k), ADD(x[at.slot(m, k)], moved));
        }
    }
}

// The sum over a tile of the products of two rows.
FN float tile_product(const float* a, const float* b) {
    float sum = 0.0f;
    for (u32 i = 0; i < MIXING_TILE; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

FN float tile_sum(const float* a) {
    float sum = 0.0f;
    for (u32 i = 0; i < MIXING_TILE; i++) {
        sum += a[i];
    }
    return sum;
}

// What a block of the backward keeps.
template <u32 SLOTS, u32 HIDDEN>
struct MixingTile {
    enum : u32 { STRIDE = MIXING_TILE + 1 };

    // dO, later dN; and N, later that before gamma and beta.
    float given[SLOTS * STRIDE];
    float norm[SLOTS * STRIDE];
    // A and dB.
    float after[HIDDEN * STRIDE];
    float inner[HIDDEN * STRIDE];
    // Of the piece, by parameter; each belongs to one thread.
    float sums[2 * SLOTS * HIDDEN + 3 * SLOTS + HIDDEN];

    // dO, N, A and dB of one column.
    FN void fill(const Mixing& m, const MixedColumn<STRIDE>& at, const float* d, u32 lane) {
        for (u32 k = 0; k < m.slots; k++) {
            given[k * STRIDE + lane] = m.masked(m.second, at.seed, m.slots, k, at.column, d[at.slot(m, k)]);
        }
        for (u32 h = 0; h < m.hidden; h++) {
            float before = at.before(m, norm + lane, h), back = 0.0f;
            for (u32 k = 0; k < m.slots; k++) {
                back = fmaf(m.w_b[k * m.hidden + h], given[k * STRIDE + lane], back);
            }
            after[h * STRIDE + lane] = m.masked(m.first, at.seed, m.hidden, h, at.column, gaussian_unit(before));
            back = m.masked(m.first, at.seed, m.hidden, h, at.column, back);
            inner[h * STRIDE + lane] = back * gaussian_slope(before);
        }
    }

    // Of a thread that has no column.
    FN void clear(const Mixing& m, u32 lane) {
        for (u32 k = 0; k < m.slots; k++) {
            given[k * STRIDE + lane] = norm[k * STRIDE + lane] = 0.0f;
        }
        for (u32 h = 0; h < m.hidden; h++) {
            after[h * STRIDE + lane] = inner[h * STRIDE + lane] = 0.0f;
        }
    }

    // Turns dO into dN and N into what is before gamma and beta, and d into dx.
    FN void input(const Mixing& m, const MixedColumn<STRIDE>& at, const float* x, float* d, u32 lane) {
        float plain = 0.0f, along = 0.0f;
        for (u32 k = 0; k < m.slots; k++) {
            float sum = 0.0f, unit = at.unit(m, x, k);
            for (u32 h = 0; h < m.hidden; h++) {
                sum = fmaf(m.w_a[h * m.slots + k], inner[h * STRIDE + lane], sum);
            }
            given[k * STRIDE + lane] = sum;
            norm[k * STRIDE + lane] = unit;
            plain += sum * m.gamma[k];
            along += sum * m.gamma[k] * unit;
        }
        plain = plain / (float)m.slots, along = along / (float)m.slots;
        for (u32 k = 0; k < m.slots; k++) {
            float through = given[k * STRIDE + lane] * m.gamma[k] - plain - norm[k * STRIDE + lane] * along;
            put(d + at.slot(m, k), d[at.slot(m, k)] + at.rstd * through);
        }
    }

    // Adds a tile to this thread's sums for both layers.
    FN void add_layers(const Mixing& m) {
        u32 K = m.slots, H = m.hidden;
        float* to = sums + 2 * K;
        for (u32 i = threadIdx.x; i < H * K; i += MIXING_TILE) {
            to[i] += tile_product(inner + i / K * STRIDE, norm + i % K * STRIDE);
        }
        for (u32 h = threadIdx.x; h < H; h += MIXING_TILE) {
            to[H * K + h] += tile_sum(inner + h * STRIDE);
        }
        to += H * K + H;
        for (u32 i = threadIdx.x; i < K * H; i += MIXING_TILE) {
            to[i] += tile_product(given + i / H * STRIDE, after + i % H * STRIDE);
        }
        for (u32 k = threadIdx.x; k < K; k += MIXING_TILE) {
            to[K * H + k] += tile_sum(given + k * STRIDE);
        }
    }

    // The same for the norm, behind `input`.
    FN void add_norm(const Mixing& m) {
        for (u32 k = threadIdx.x; k < m.slots; k += MIXING_TILE) {
            sums[k] += tile_product(given + k * STRIDE, norm + k * STRIDE);
            sums[m.slots + k] += tile_sum(given + k * STRIDE);
        }
    }
};

template <u32 SLOTS, u32 HIDDEN>
FN void mix_backward(const Mixing& m, u64 seeds, const float* x, float* d, float* partials) {
    typedef MixingTile<SLOTS, HIDDEN> Tile;
    __shared__ Tile tile;
    u64 positions = seeds * m.columns, pieces = (positions + MIXING_PIECE - 1) / MIXING_PIECE;
    u32 lane = threadIdx.x, parameters = 2 * m.slots * m.hidden + 3 * m.slots + m.hidden;
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        for (u32 i = lane; i < parameters; i += MIXING_TILE) {
            tile.sums[i] = 0.0f;
        }
        u64 end = min64(positions, (piece + 1) * MIXING_PIECE);
        // The threads that cleared sums are not those that add to them.
        __syncthreads();
        for (u64 first = piece * MIXING_PIECE; first < end; first += MIXING_TILE) {
            bool inside = first + lane < end;
            MixedColumn<Tile::STRIDE> at(m, x, inside ? first + lane : first, tile.norm + lane);
            if (inside) {
                tile.fill(m, at, d, lane);
            } else {
                tile.clear(m, lane);
            }
            __syncthreads();
            tile.add_layers(m);
            __syncthreads();
            if (inside) {
                tile.input(m, at, x, d, lane);
            }
            __syncthreads();
            tile.add_norm(m);
            __syncthreads();
        }
        for (u32 i = lane; i < parameters; i += MIXING_TILE) {
            put(partials + piece * parameters + i, tile.sums[i]);
        }
        __syncthreads();
    }
}

#define MIXING(SLOTS, HIDDEN)                                                                                          \
    extern "C" __global__ void __launch_bounds__(MIXING_THREADS)                                                       \
        mixing_forward_##SLOTS##_##HIDDEN(Mixing m, u64 seeds, const float* x, float* y) {                             \
        mix_forward<SLOTS, HIDDEN>(m, seeds, x, y);                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(MIXING_TILE)                                                          \
        mixing_backward_##SLOTS##_##HIDDEN(Mixing m, u64 seeds, const float* x, float* d, float* partials) {           \
        mix_backward<SLOTS, HIDDEN>(m, seeds, x, d, partials);                                                         \
    }

MIXING(16, 16)
MIXING(32, 16)
MIXING(32, 32)
