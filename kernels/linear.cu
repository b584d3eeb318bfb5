// Linear layers of the shapes of a TGN step: 600 to 12,000 rows, 100 to 500 columns on either side, in f32.
//
//   linear_forward   out[m, n] (+)= scale a[m, k] w[n, k]^T + bias[n], with max(x, 0) of it if asked for
//   linear_input     da[m, k]  (+)= scale d[m, n] w[n, k], and columns of zeros behind it if asked for
//   linear_weights   dw[n, k] = scale d[m, n]^T a[m, k]        db[n] = sum over rows of d[m, n]
//
// Operands are parts of longer rows where strides are longer than rows, and `parts` products of one shape run in one
// launch, as the heads of an attention. In `Product` rows and columns are those of the result: m and n, m and k, n and
// k.
//
// linear_weights has a table of products, whose results nothing waits for before a backward is done: those of a whole
// backward are one launch. Each is partial sums over pieces of PRODUCT_PIECE_ROWS rows, `piece_step` values apart, to
// be added up by sum_pieces: no atomics, the same result at every launch. Those of a bias, if there is one, are of the
// first part, and stand `left_sums` values behind the beginning of those of the weights; k >= 1 then.
//
// They are not a library's because a whole step has to run where there is neither a library of products nor a GPU: the
// CPU simulates one with this text.
//
// Launch: blocks of 256 threads, exactly; grid: one per tile of 32 x 32 values, part and piece, or any less. `items` is
// how many of them all products of a table have.
//
// 2 m n k FLOP per launch, 4 (m k + n k + m n) bytes from memory, m k read again from the second-level cache for every
// 32 columns of the result and n k for every 32 rows. At m = 12,000, n = 100, k = 300: 0.72 GFLOP and 19 MB, 1,500
// blocks: bound by multiplications (11 us at 67 TFLOP/s, 6 us at 3.3 TB/s). At m = 600 there are 76 blocks for 132
// multiprocessors: bound by the latency of the steps of one team, k / 64 of them one after the other. linear_weights
// writes and reads again 4 n k bytes per piece: 47 pieces at 12,000 rows; the sums of a bias are of what blocks of the
// first tile of columns have in shared memory anyway. The times follow from rates; none is measured.
//
// Sums run in another order than the CPU's: results agree to rounding.
//
// Registers by NVRTC 13.0, sm_80/sm_90: linear_forward 110/113, linear_input 113/115, linear_weights 121/119. No
// spills.
#include "linear.cuh"

// Two blocks to a multiprocessor, so that the compiler has the registers to ask for the next step's loads before it
// computes with this one's: with fewer it moves them to the end, where they are waited for.
extern "C" __global__ void __launch_bounds__(256, 2) linear_forward(Product p, const float* a, const float* w,
                                                                    const float* bias, float* out) {
    multiply_all<true, true>(p, a, w, bias, out);
}

extern "C" __global__ void __launch_bounds__(256, 2) linear_input(Product p, const float* d, const float* w,
                                                                  float* da) {
    multiply_all<true, false>(p, d, w, nullptr, da);
}

extern "C" __global__ void __launch_bounds__(256, 2) linear_weights(const PieceProduct* products, u32 count,
                                                                    u64 items) {
    __shared__ ProductRoom room;
    for (u64 item = blockIdx.x; item < items; item += gridDim.x) {
        const PieceProduct& product = entry_of(products, count, item);
        const Product& p = product.shape;
        u64 tiles = tiles_of(p), at = item - product.before, piece = at / tiles / p.parts;
        u32 begin = (u32)piece * PRODUCT_PIECE_ROWS, end = min32(p.inner, begin + PRODUCT_PIECE_ROWS);
        float* out = product.out + piece * product.piece_step;
        float* sums = product.has_left_sums != 0 ? out + product.left_sums : nullptr;
        multiply<false, false, true>(room, p, product.left, product.right, nullptr, at % tiles, at / tiles % p.parts,
                                     begin, end, out, sums);
    }
}
