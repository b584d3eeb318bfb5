// Elementary functions and sums of f32. The functions are those of src/nn/cpu/math.rs step for step, so a GPU and
// the CPU encode a time or squash a gate alike, bit for bit. MUL and ADD are rounded one by one where the twin
// does so: a product of a weight and a time difference is large, and fusing it with the sum that follows would move
// the angle.
#ifndef EVERGRAPH_MATH_CUH
#define EVERGRAPH_MATH_CUH

#include "portable.cuh"

#define MUL(a, b) __fmul_rn(a, b)
#define ADD(a, b) __fadd_rn(a, b)

// x / (2 pi) less the nearest integer, reduced in f64: right to 2e-7 for |x| up to 1e9.
FN float turns(float x) {
    const double round = 6755399441055744.0;
    double all = __dmul_rn((double)x, 0.15915494309189535);
    return (float)__dadd_rn(all, -__dadd_rn(__dadd_rn(all, round), -round));
}

FN float at_most(float x, float limit) { return x > limit ? limit : x; }

// sin(2 pi z) for z in [-0.25, 0.25].
FN float sin_quarter(float z) {
    float s = MUL(z, z);
    float p = fmaf(s, -14.394304f, 42.00983f);
    p = fmaf(s, p, -76.704285f);
    p = fmaf(s, p, 81.60523f);
    p = fmaf(s, p, -41.3417f);
    p = fmaf(s, p, 6.2831853f);
    return MUL(z, p);
}

FN float cosine(float x) { return sin_quarter(ADD(0.25f, -at_most(fabsf(turns(x)), 0.5f))); }

// A quarter turn later than the cosine.
FN float sine(float x) {
    float a = at_most(fabsf(ADD(turns(x), -0.25f)), 0.75f);
    return sin_quarter(ADD(fabsf(ADD(a, -0.5f)), -0.25f));
}

// Arguments are clamped to [-87, 88]; NaN stays NaN.
FN float exponential(float x) {
    const float round = 12582912.0f;
    float clamped = at_most(x < -87.0f ? -87.0f : x, 88.0f);
    float shifted = fmaf(clamped, 1.44269504f, round);
    float n = ADD(shifted, -round);
    float r = fmaf(n, -0.6933594f, clamped);
    r = fmaf(n, 2.1219444e-4f, r);
    float p = fmaf(r, 0.0013956054f, 0.008375135f);
    p = fmaf(r, p, 0.041666083f);
    p = fmaf(r, p, 0.16666415f);
    p = fmaf(r, p, 0.5f);
    p = fmaf(r, p, 1.0f);
    p = fmaf(r, p, 1.0f);
    return MUL(p, __uint_as_float((__float_as_uint(shifted) + 127u) << 23));
}

FN float sigmoid(float x) { return 1.0f / ADD(1.0f, exponential(-x)); }

// A polynomial near zero, exponentials elsewhere.
FN float hyperbolic_tangent(float x) {
    float s = MUL(x, x);
    float p = fmaf(s, -0.005863209f, 0.020763578f);
    p = fmaf(s, p, -0.053771846f);
    p = fmaf(s, p, 0.13331729f);
    p = fmaf(s, p, -0.33333285f);
    p = fmaf(s, p, 1.0f);
    float far = ADD(1.0f, -(2.0f / ADD(exponential(MUL(2.0f, fabsf(x))), 1.0f)));
    return fabsf(x) < 0.6f ? MUL(x, p) : copysignf(far, x);
}

// The part of a normal distribution below x, and its density there.
struct Normal {
    float below;
    float density;

    FN explicit Normal(float x) {
        float bell = exponential(MUL(MUL(-0.5f, x), x));
        float t = 1.0f / fmaf(MUL(0.3275911f, 0.70710678f), fabsf(x), 1.0f);
        float p = fmaf(t, 1.0614054f, -1.4531521f);
        p = fmaf(t, p, 1.4214138f);
        p = fmaf(t, p, -0.28449672f);
        p = fmaf(t, p, 0.2548296f);
        float tail = MUL(MUL(MUL(0.5f, t), p), bell);
        below = x > 0.0f ? ADD(1.0f, -tail) : tail;
        density = MUL(bell, 0.3989423f);
    }
};

// The Gaussian error linear unit, and its slope.
FN float gaussian_unit(float x) { return MUL(x, Normal(x).below); }

FN float gaussian_slope(float x) {
    Normal normal(x);
    return fmaf(x, normal.density, normal.below);
}

// One column of a time encoding.
FN float encoded(float w, float delta, float b) { return cosine(ADD(MUL(w, delta), b)); }

// The sum over the 32 lanes of a warp, in all of them.
FN float warp_sum(float x) {
    for (int other = 16; other > 0; other /= 2) {
        x += __shfl_xor_sync(0xFFFFFFFFu, x, other);
    }
    return x;
}

#endif
