// Products of skinny matrices in single precision, tile by tile of the result: PRODUCT_TILE x PRODUCT_TILE values to a
// block of 256 threads, four teams of 64, which have 4 x 4 of the values to a thread each.
//
// A training step has products of so few rows that what takes long is one step along the inner dimension after the
// other, each of which waits for memory. So tiles are small, to be many, and the teams of a block share the inner
// dimension: each takes every fourth step of PRODUCT_DEPTH, and at the end their sums are added in the teams' order. Of
// each step a team puts PRODUCT_DEPTH rows of either side into shared memory, two loads of 16 bytes per thread and
// side; while it computes with them the loads of its next step are under way, and go into the other half of the shared
// memory: one barrier per step. A thread reads 4 + 4 values of shared memory for 16 multiplications, and lanes of a
// warp that read the same are served together (4 rows by 8 groups of columns). A side whose rows run along the inner
// dimension is turned on its way there, value by value: in the second half of a step's places its columns change
// places by eights, so that the 32 values that a warp stores together lie in 32 banks.
#ifndef EVERGRAPH_LINEAR_CUH
#define EVERGRAPH_LINEAR_CUH

#include "math.cuh"
#include "tables.cuh"

#define PRODUCT_TILE 32u
#define PRODUCT_DEPTH 16u
#define PRODUCT_TEAMS 4u
// Threads of a team, and fours of a row of a tile: a thread has one of the rows by one of the columns.
#define PRODUCT_TEAM 64u
#define PRODUCT_FOURS 8u
// Fours of a row of a tile in shared memory: one more than it holds, so that rows begin in different banks.
#define PRODUCT_PITCH 9u
// Loads per thread and side of a step.
#define PRODUCT_LOADS 2u
// Rows that are summed before sums are.
#define PRODUCT_PIECE_ROWS 256u

// What happens to what is there, and to the result.
#define PRODUCT_ADD 1u
#define PRODUCT_RELU 2u

// `parts` products of one shape: [rows, inner] by [inner, columns]. A stride is the distance of rows where they lie, a
// step that of parts. Of the columns, those from `right_columns` on are zeros, which nothing is read for.
struct Product {
    u32 rows;
    u32 columns;
    u32 inner;
    u32 parts;
    u32 right_columns;
    u32 unused;
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

// Four values of a row from `first` on, zeros behind its `end`, one by one.
FN float4 four_of(const float* row, u32 first, u32 end) {
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (first < end) {
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

    // Whether its rows are whole fours, each at an address that is read at once.
    FN bool is_in_fours() const { return in_fours(values, stride) && (ALONG ? inner : outer) % 4 == 0; }

    // The fours of this thread of the step at `at` of the tile at `from`; zeros behind the end of either dimension.
    template <bool FOURS>
    FN void load(u32 from, u32 at, float4 (&held)[PRODUCT_LOADS]) const {
#pragma unroll
        for (u32 i = 0; i < PRODUCT_LOADS; i++) {
            u32 four = threadIdx.x % PRODUCT_TEAM + i * PRODUCT_TEAM;
            u32 row = ALONG ? from + four / 4 : at + four / PRODUCT_FOURS;
            u32 first = ALONG ? at + four % 4 * 4 : from + four % PRODUCT_FOURS * 4;
            u32 rows = ALONG ? outer : inner, end = ALONG ? inner : outer;
            held[i] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (FOURS && row < rows && first < end) {
                held[i] = *(const float4*)(values + row * stride + first);
            } else if (!FOURS && row < rows) {
                held[i] = four_of(values + row * stride, first, end);
            }
        }
    }

    // Where column `column`, or four `four`, of a place of the inner dimension lies in shared memory.
    static FN u32 column_at(u32 place, u32 column) { return ALONG ? column ^ (place & 8) : column; }
    static FN u32 four_at(u32 place, u32 four) { return ALONG ? four ^ (place & 8) / 4 : four; }

    // Puts them into shared memory, where a row is a place of the inner dimension.
    FN void store(float4 (&tile)[PRODUCT_DEPTH][PRODUCT_PITCH], const float4 (&held)[PRODUCT_LOADS]) const {
#pragma unroll
        for (u32 i = 0; i < PRODUCT_LOADS; i++) {
            u32 four = threadIdx.x % PRODUCT_TEAM + i * PRODUCT_TEAM;
            if (ALONG) {
                u32 place = four % 4 * 4, column = column_at(place, four / 4);
                ((float*)tile[place])[column] = held[i].x;
                ((float*)tile[place + 1])[column] = held[i].y;
                ((float*)tile[place + 2])[column] = held[i].z;
                ((float*)tile[place + 3])[column] = held[i].w;
            } else {
                tile[four / PRODUCT_FOURS][four % PRODUCT_FOURS] = held[i];
            }
        }
    }
};

// Which four of rows and of columns of a tile is this thread's.
FN u32 four_of_rows() { return threadIdx.x % PRODUCT_TEAM / PRODUCT_FOURS; }
FN u32 four_of_columns() { return threadIdx.x % PRODUCT_FOURS; }

FN void add_four(float4& sums, float left, float4 right) {
    sums.x = fmaf(left, right.x, sums.x);
    sums.y = fmaf(left, right.y, sums.y);
    sums.z = fmaf(left, right.z, sums.z);
    sums.w = fmaf(left, right.w, sums.w);
}

// What a block computes with, one tile after the other.
union ProductRoom {
    // Of each team: both sides of the step that it computes with, and of the next.
    float4 steps[PRODUCT_TEAMS][2][2][PRODUCT_DEPTH][PRODUCT_PITCH];
    // Each team's sums of the tile.
    float4 sums[PRODUCT_TEAMS][PRODUCT_TILE][PRODUCT_FOURS];
};

// This thread's team's part of the products of `begin..end` of the inner dimension, for its values of the tile at row
// and column. All threads of the block together. Where `summed`, this thread's part of the sum of the left side's
// values of row threadIdx.x % PRODUCT_TILE is added to `of_left`.
template <bool LEFT_FOURS, bool RIGHT_FOURS, bool LEFT, bool RIGHT, bool SUMS>
FN void tile_product(ProductRoom& room, const ProductSide<LEFT>& left, const ProductSide<RIGHT>& right, u32 row,
                     u32 column, u32 begin, u32 end, float4 (&sums)[4], bool summed, float& of_left) {
    float4(&steps)[2][2][PRODUCT_DEPTH][PRODUCT_PITCH] = room.steps[threadIdx.x / PRODUCT_TEAM];
    float4 next_left[PRODUCT_LOADS], next_right[PRODUCT_LOADS];
    u32 at = begin + threadIdx.x / PRODUCT_TEAM * PRODUCT_DEPTH;
    left.template load<LEFT_FOURS>(row, at, next_left);
    right.template load<RIGHT_FOURS>(column, at, next_right);
    u32 half = 0;
    // The first step of all teams, then the second, and so on.
    for (u32 first = begin; first < end; first += PRODUCT_TEAMS * PRODUCT_DEPTH) {
        left.store(steps[half][0], next_left);
        right.store(steps[half][1], next_right);
        // Before it the step that used this half of the room was computed with: one step lies between.
        __syncthreads();
        at += PRODUCT_TEAMS * PRODUCT_DEPTH;
        left.template load<LEFT_FOURS>(row, at, next_left);
        right.template load<RIGHT_FOURS>(column, at, next_right);
#pragma unroll
        for (u32 place = 0; place < PRODUCT_DEPTH; place++) {
            float4 a = steps[half][0][place][ProductSide<LEFT>::four_at(place, four_of_rows())];
            float4 b = steps[half][1][place][ProductSide<RIGHT>::four_at(place, four_of_columns())];
            add_four(sums[0], a.x, b);
            add_four(sums[1], a.y, b);
            add_four(sums[2], a.z, b);
            add_four(sums[3], a.w, b);
        }
        if (SUMS && summed) {
            u32 part = threadIdx.x % PRODUCT_TEAM / PRODUCT_TILE * (PRODUCT_DEPTH / 2);
#pragma unroll
            for (u32 place = part; place < part + PRODUCT_DEPTH / 2; place++) {
                u32 at_column = ProductSide<LEFT>::column_at(place, threadIdx.x % PRODUCT_TILE);
                of_left += ((const float*)steps[half][0][place])[at_column];
            }
        }
        half = 1 - half;
    }
    // What follows writes the room.
    __syncthreads();
}

FN float finished(const Product& p, float sum, float bias, float before) {
    float value = (p.into & PRODUCT_ADD) != 0 ? before + fmaf(p.scale, sum, bias) : fmaf(p.scale, sum, bias);
    return (p.into & PRODUCT_RELU) != 0 && value < 0.0f ? 0.0f : value;
}

// Adds up the teams' sums of the tile at row and column, and writes them, a four of a row to a thread. `bias`, of the
// columns, may be null. All threads of the block together.
FN void store_tile(ProductRoom& room, const Product& p, const float4 (&sums)[4], u32 row, u32 column, const float* bias,
                   float* out) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        room.sums[threadIdx.x / PRODUCT_TEAM][4 * four_of_rows() + i][four_of_columns()] = sums[i];
    }
    __syncthreads();
    u32 own = threadIdx.x / PRODUCT_FOURS, first = column + threadIdx.x % PRODUCT_FOURS * 4;
    float4 sum = room.sums[0][own][threadIdx.x % PRODUCT_FOURS];
#pragma unroll
    for (u32 team = 1; team < PRODUCT_TEAMS; team++) {
        float4 more = room.sums[team][own][threadIdx.x % PRODUCT_FOURS];
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
    }
    // The next tile writes the room.
    __syncthreads();
    if (row + own >= p.rows || first >= p.columns) {
        return;
    }
    float* to = out + (row + own) * p.out_stride + first;
    bool adds = (p.into & PRODUCT_ADD) != 0;
    float4 add = bias == nullptr ? float4{0.0f, 0.0f, 0.0f, 0.0f} : four_of(bias, first, p.columns);
    if (in_fours(out, p.out_stride) && first + 4 <= p.columns) {
        float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
        if (adds) {
            value = *(const float4*)to;
        }
        value.x = finished(p, sum.x, add.x, value.x);
        value.y = finished(p, sum.y, add.y, value.y);
        value.z = finished(p, sum.z, add.z, value.z);
        value.w = finished(p, sum.w, add.w, value.w);
        put((float4*)to, value);
    } else {
        float found[4] = {sum.x, sum.y, sum.z, sum.w}, added[4] = {add.x, add.y, add.z, add.w};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (first + j < p.columns) {
                put(to + j, finished(p, found[j], added[j], adds ? to[j] : 0.0f));
            }
        }
    }
}

FN u64 tiles_of(u32 size) { return ((u64)size + PRODUCT_TILE - 1) / PRODUCT_TILE; }

// Adds up what all threads have of the rows of a tile, in their order, and writes it for those that there are.
FN void store_sums(const Product& p, float part, u32 row, float* out) {
    __shared__ float parts[256 / PRODUCT_TILE][PRODUCT_TILE];
    u32 at = threadIdx.x % PRODUCT_TILE;
    parts[threadIdx.x / PRODUCT_TILE][at] = part;
    __syncthreads();
    if (threadIdx.x < PRODUCT_TILE && row + at < p.rows) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 256 / PRODUCT_TILE; i++) {
            sum += parts[i][at];
        }
        put(out + row + at, sum);
    }
}

// The tile of a part, over `begin..end` of the inner dimension, of which `out` and, with SUMS, `left_sums` have a
// result of their own; the latter is the sums over it of the left side, which the first part's first column of tiles
// writes unless it is null. All threads of the block together.
template <bool LEFT, bool RIGHT, bool SUMS>
FN void multiply(ProductRoom& room, const Product& p, const float* left, const float* right, const float* bias,
                 u64 tile, u64 part, u32 begin, u32 end, float* out, float* left_sums) {
    u64 across = tiles_of(p.columns);
    u32 row = (u32)(tile / across) * PRODUCT_TILE, column = (u32)(tile % across) * PRODUCT_TILE;
    ProductSide<LEFT> one = {left + part * p.left_step, p.left_stride, p.rows, end};
    ProductSide<RIGHT> other = {right + part * p.right_step, p.right_stride, p.right_columns, end};
    float4 sums[4] = {};
    float of_left = 0.0f;
    bool summed = SUMS && left_sums != nullptr && column == 0 && part == 0;
    // A side that has odd rows must not slow the loads of the other.
    if (!one.is_in_fours() && !other.is_in_fours()) {
        tile_product<false, false, LEFT, RIGHT, SUMS>(room, one, other, row, column, begin, end, sums, summed, of_left);
    } else if (!one.is_in_fours()) {
        tile_product<false, true, LEFT, RIGHT, SUMS>(room, one, other, row, column, begin, end, sums, summed, of_left);
    } else if (!other.is_in_fours()) {
        tile_product<true, false, LEFT, RIGHT, SUMS>(room, one, other, row, column, begin, end, sums, summed, of_left);
    } else {
        tile_product<true, true, LEFT, RIGHT, SUMS>(room, one, other, row, column, begin, end, sums, summed, of_left);
    }
    store_tile(room, p, sums, row, column, bias, out + part * p.out_step);
    if (summed) {
        store_sums(p, of_left, row, left_sums);
    }
}

FN u64 tiles_of(const Product& p) { return tiles_of(p.rows) * tiles_of(p.columns); }

// All tiles of all parts that are this block's.
template <bool LEFT, bool RIGHT>
FN void multiply_all(const Product& p, const float* left, const float* right, const float* bias, float* out) {
    __shared__ ProductRoom room;
    u64 tiles = tiles_of(p);
    for (u64 item = blockIdx.x; item < tiles * p.parts; item += gridDim.x) {
        multiply<LEFT, RIGHT, false>(room, p, left, right, bias, item % tiles, item / tiles, 0, p.inner, out, nullptr);
    }
}

// One of the products of a launch whose inner dimension is cut into pieces with results of their own. How many it has
// follows from where the next product begins; those behind the end of the inner dimension are zeros.
struct PieceProduct {
    const float* left;
    const float* right;
    float* out;
    Product shape;
    // Tiles of all parts and pieces of the products before this one in the table.
    u64 before;
    // From the results of a piece to those of the next.
    u64 piece_step;
    // Where sums over the left side are behind the beginning of `out`, if there are any.
    u64 left_sums;
    u32 has_left_sums;
    u32 unused;
};

#endif
