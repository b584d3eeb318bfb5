// Products of skinny matrices in single precision, tile by tile of the result: PRODUCT_TILE x PRODUCT_TILE values to a
// block of 256 threads, 4 x 4 of them to a thread.
//
// The inner dimension is walked in steps of PRODUCT_DEPTH. Of each step a block puts PRODUCT_DEPTH rows of either side
// into shared memory, a load of 16 bytes per thread and side; while it computes with them the loads of the next step
// are under way, and go into the other half of the shared memory: one barrier per step. A thread reads 4 + 4 values of
// shared memory for 16 multiplications, and lanes of a warp that read the same are served together (4 rows by 8 groups
// of columns), so the multiplications are what takes long.
#ifndef EVERGRAPH_LINEAR_CUH
#define EVERGRAPH_LINEAR_CUH

#include "math.cuh"

#define PRODUCT_TILE 64u
#define PRODUCT_DEPTH 16u
// Fours of a row of a tile in shared memory: one more than it holds, so that rows begin in different banks.
#define PRODUCT_PITCH 17u
// Rows that are summed before sums are.
#define PRODUCT_PIECE_ROWS 512u

// What happens to what is there, and to the result.
#define PRODUCT_ADD 1u
#define PRODUCT_RELU 2u

// `parts` products of one shape: [rows, inner] by [inner, columns]. A stride is the distance of rows where they lie, a
// step that of parts.
struct Product {
    u32 rows;
    u32 columns;
    u32 inner;
    u32 parts;
    u64 left_stride;
    u64 right_stride;
    u64 out_stride;
    u64 left_step;
    u64 right_step;
    u64 out_step;
    float scale;
    u32 into;
};

FN bool in_fours(const void* first, u64 stride) { return (((u64)first | stride * sizeof(float)) & 15) == 0; }

// Four values of a row from `first` on, zeros behind its `end`.
FN float4 four_of(const float* row, u32 first, u32 end, bool fours) {
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (fours && first + 4 <= end) {
        four = *(const float4*)(row + first);
    } else if (first < end) {
        four.x = row[first];
        four.y = first + 1 < end ? row[first + 1] : 0.0f;
        four.z = first + 2 < end ? row[first + 2] : 0.0f;
        four.w = first + 3 < end ? row[first + 3] : 0.0f;
    }
    return four;
}

// One side of a product. Its rows in memory run along the inner dimension (ALONG), or there is one for each place of
// the inner dimension.
template <bool ALONG>
struct ProductSide {
    const float* values;
    u64 stride;
    // Rows of the result, or columns.
    u32 outer;
    // Where the inner dimension ends.
    u32 inner;
    bool fours;

    FN ProductSide(const float* first, u64 apart, u32 outside, u32 end)
        : values(first), stride(apart), outer(outside), inner(end), fours(in_fours(first, apart)) {}

    // This thread's four values of the step at `at` of the tile at `from`.
    FN float4 load(u32 from, u32 at) const {
        u32 row = ALONG ? from + threadIdx.x / 4 : at + threadIdx.x / 16;
        u32 first = ALONG ? at + threadIdx.x % 4 * 4 : from + threadIdx.x % 16 * 4;
        float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
        return row < (ALONG ? outer : inner) ? four_of(values + row * stride, first, ALONG ? inner : outer, fours)
                                             : none;
    }

    // Puts them into shared memory, where a row is a place of the inner dimension.
    FN void store(float4 (&tile)[PRODUCT_DEPTH][PRODUCT_PITCH], float4 four) const {
        if (ALONG) {
            u32 place = threadIdx.x % 4 * 4, column = threadIdx.x / 4;
            ((float*)tile[place])[column] = four.x;
            ((float*)tile[place + 1])[column] = four.y;
            ((float*)tile[place + 2])[column] = four.z;
            ((float*)tile[place + 3])[column] = four.w;
        } else {
            tile[threadIdx.x / 16][threadIdx.x % 16] = four;
        }
    }
};

// Which fours of rows and of columns of a tile are this thread's.
FN u32 four_of_rows() { return threadIdx.x / 64 * 4 + threadIdx.x % 32 / 8; }
FN u32 four_of_columns() { return threadIdx.x / 32 % 2 * 8 + threadIdx.x % 8; }

FN void add_four(float (&sums)[4], float left, float4 right) {
    sums[0] = fmaf(left, right.x, sums[0]);
    sums[1] = fmaf(left, right.y, sums[1]);
    sums[2] = fmaf(left, right.z, sums[2]);
    sums[3] = fmaf(left, right.w, sums[3]);
}

// Adds the products of `begin..end` of the inner dimension to this thread's values of the tile at row and column. All
// threads of the block together. Where `summed`, a thread's quarter of the left side's values of row threadIdx.x % 64
// is added to `of_left`.
template <bool LEFT, bool RIGHT, bool SUMS>
FN void tile_product(const ProductSide<LEFT>& left, const ProductSide<RIGHT>& right, u32 row, u32 column, u32 begin,
                     u32 end, float (&sums)[4][4], bool summed, float& of_left) {
    __shared__ float4 lefts[2][PRODUCT_DEPTH][PRODUCT_PITCH];
    __shared__ float4 rights[2][PRODUCT_DEPTH][PRODUCT_PITCH];
    left.store(lefts[0], left.load(row, begin));
    right.store(rights[0], right.load(column, begin));
    __syncthreads();
    u32 half = 0;
    for (u32 at = begin; at < end; at += PRODUCT_DEPTH) {
        bool more = at + PRODUCT_DEPTH < end;
        float4 next_left = {0.0f, 0.0f, 0.0f, 0.0f}, next_right = next_left;
        if (more) {
            next_left = left.load(row, at + PRODUCT_DEPTH);
            next_right = right.load(column, at + PRODUCT_DEPTH);
        }
#pragma unroll
        for (u32 place = 0; place < PRODUCT_DEPTH; place++) {
            float4 a = lefts[half][place][four_of_rows()], b = rights[half][place][four_of_columns()];
            add_four(sums[0], a.x, b);
            add_four(sums[1], a.y, b);
            add_four(sums[2], a.z, b);
            add_four(sums[3], a.w, b);
        }
        if (SUMS && summed) {
#pragma unroll
            for (u32 place = 0; place < PRODUCT_DEPTH / 4; place++) {
                const float4* values = lefts[half][threadIdx.x / PRODUCT_TILE * (PRODUCT_DEPTH / 4) + place];
                of_left += ((const float*)values)[threadIdx.x % PRODUCT_TILE];
            }
        }
        if (more) {
            left.store(lefts[1 - half], next_left);
            right.store(rights[1 - half], next_right);
        }
        // The next step, and the first of the next tile, write what was just read.
        __syncthreads();
        half = 1 - half;
    }
}

FN float finished(const Product& p, float sum, float bias, float before) {
    float value = (p.into & PRODUCT_ADD) != 0 ? before + fmaf(p.scale, sum, bias) : fmaf(p.scale, sum, bias);
    return (p.into & PRODUCT_RELU) != 0 && value < 0.0f ? 0.0f : value;
}

// Writes this thread's values of the tile at row and column. `bias`, of the columns, may be null.
FN void store_tile(const Product& p, const float (&sums)[4][4], u32 row, u32 column, const float* bias, float* out) {
    u32 first = column + 4 * four_of_columns();
    bool whole = in_fours(out, p.out_stride) && first + 4 <= p.columns, adds = (p.into & PRODUCT_ADD) != 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 at = row + 4 * four_of_rows() + i;
        if (at >= p.rows || first >= p.columns) {
            continue;
        }
        float* to = out + at * p.out_stride + first;
        if (whole) {
            float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
            if (adds) {
                value = *(const float4*)to;
            }
            value.x = finished(p, sums[i][0], bias == nullptr ? 0.0f : bias[first], value.x);
            value.y = finished(p, sums[i][1], bias == nullptr ? 0.0f : bias[first + 1], value.y);
            value.z = finished(p, sums[i][2], bias == nullptr ? 0.0f : bias[first + 2], value.z);
            value.w = finished(p, sums[i][3], bias == nullptr ? 0.0f : bias[first + 3], value.w);
            put((float4*)to, value);
        } else {
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                if (first + j < p.columns) {
                    float add = bias == nullptr ? 0.0f : bias[first + j];
                    put(to + j, finished(p, sums[i][j], add, adds ? to[j] : 0.0f));
                }
            }
        }
    }
}

FN u64 tiles_of(u32 size) { return ((u64)size + PRODUCT_TILE - 1) / PRODUCT_TILE; }

// Adds up what the four quarters of a block have of the rows of a tile, and writes it for those that there are.
FN void store_sums(const Product& p, float quarter, u32 row, float* out) {
    __shared__ float quarters[4][PRODUCT_TILE];
    u32 part = threadIdx.x / PRODUCT_TILE, at = threadIdx.x % PRODUCT_TILE;
    quarters[part][at] = quarter;
    __syncthreads();
    if (part == 0 && row + at < p.rows) {
        put(out + row + at, quarters[0][at] + quarters[1][at] + quarters[2][at] + quarters[3][at]);
    }
}

// All tiles of all parts that are this block's, of `pieces` pieces of the inner dimension with results of their own,
// `piece_step` apart; with SUMS also the sums over the inner dimension of the first part's left side, unless
// `left_sums` is null.
template <bool LEFT, bool RIGHT, bool SUMS>
FN void multiply(const Product& p, const float* left, const float* right, const float* bias, u32 piece, u64 piece_step,
                 float* out, float* left_sums) {
    u64 across = tiles_of(p.columns), tiles = tiles_of(p.rows) * across;
    u64 pieces = piece == 0 ? 1 : ((u64)p.inner + piece - 1) / piece;
    for (u64 item = blockIdx.x; item < tiles * p.parts * pieces; item += gridDim.x) {
        u64 tile = item % tiles, part = item / tiles % p.parts, number = item / tiles / p.parts;
        u32 begin = (u32)number * piece, row = (u32)(tile / across) * PRODUCT_TILE;
        u32 column = (u32)(tile % across) * PRODUCT_TILE;
        u32 end = piece == 0 ? p.inner : min32(p.inner, begin + piece);
        ProductSide<LEFT> one(left + part * p.left_step, p.left_stride, p.rows, end);
        ProductSide<RIGHT> other(right + part * p.right_step, p.right_stride, p.columns, end);
        float sums[4][4] = {}, of_left = 0.0f;
        bool summed = SUMS && left_sums != nullptr && column == 0 && part == 0;
        tile_product<LEFT, RIGHT, SUMS>(one, other, row, column, begin, end, sums, summed, of_left);
        store_tile(p, sums, row, column, bias, out + part * p.out_step + number * piece_step);
        if (summed) {
            store_sums(p, of_left, row, left_sums + number * piece_step);
        }
    }
}

#endif
