/* What every C translation unit that Treadle prints includes: vector types, memory access, float32 math.
 *
 * Naming. Scalar functions end in f (treadle_expf); the same function on a vector carries the vector's type
 * (treadle_exp_v16f). Both are branch free, so a plain loop that calls a scalar one vectorises.
 *
 * NaN, infinities, signed zeros and subnormals behave as in C's <math.h>; error bounds stand at each function and are
 * tested in tests/backends/c/test_math_header.py. Correct without -ffast-math; -fno-math-errno and -fno-trapping-math
 * are assumed only for speed. GNU C11: gcc and clang.
 */
#ifndef TREADLE_H
#define TREADLE_H

#define TREADLE_INLINE static inline __attribute__((always_inline, unused))
#define TREADLE_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define TREADLE_INFINITY __builtin_inff()
#define TREADLE_NAN __builtin_nanf("")

/* TREADLE_UNROLL(n) before a loop whose variable indexes a register tile: both compilers then keep the tile in registers. */
#define TREADLE_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TREADLE_UNROLL(n) TREADLE_PRAGMA(clang loop unroll_count(n))
#else
#define TREADLE_UNROLL(n) TREADLE_PRAGMA(GCC unroll n)
#endif

/* Fetches the cache line of an element of a buffer, which may lie outside of it: an address, not a pointer, is computed. */
#define TREADLE_ADDRESS(type, buffer, offset) \
    ((const void *)((unsigned long)(buffer) + (unsigned long)(offset) * sizeof(type)))
#define TREADLE_PREFETCH(type, buffer, offset) __builtin_prefetch(TREADLE_ADDRESS(type, buffer, offset))

/* The same index, of which the compiler does not know that it is the same. */
#define TREADLE_AGAIN(index)            \
    ({                                  \
        long again = (index);           \
        __asm__("" : "+r"(again));      \
        again;                          \
    })

/* The same buffer, of which the compiler does not know that it is the same; only to read. */
#define TREADLE_AGAIN_BUFFER(type, buffer)         \
    ({                                             \
        const type *again = (const type *)(buffer); \
        __asm__("" : "+r"(again));                 \
        again;                                     \
    })

/* v<lanes>f, i, u: that many 32-bit lanes; v<lanes>h: lanes of 16 bits, bfloat16 or float16; v<lanes>f_u: the same float
 * vector in memory that is aligned like a float, and so on. */
#define TREADLE_VECTOR_TYPES(lanes)                                                              \
    typedef float v##lanes##f __attribute__((vector_size(4 * lanes)));                           \
    typedef int v##lanes##i __attribute__((vector_size(4 * lanes)));                             \
    typedef unsigned v##lanes##u __attribute__((vector_size(4 * lanes)));                        \
    typedef float v##lanes##f_u __attribute__((vector_size(4 * lanes), aligned(4), may_alias));  \
    typedef int v##lanes##i_u __attribute__((vector_size(4 * lanes), aligned(4), may_alias));    \
    typedef signed char v##lanes##b __attribute__((vector_size(lanes)));                         \
    typedef unsigned char v##lanes##ub __attribute__((vector_size(lanes)));                      \
    typedef signed char v##lanes##b_u __attribute__((vector_size(lanes), aligned(1), may_alias)); \
    typedef unsigned char v##lanes##ub_u __attribute__((vector_size(lanes), aligned(1), may_alias)); \
    typedef unsigned short v##lanes##h __attribute__((vector_size(2 * lanes)));                  \
    typedef unsigned short v##lanes##h_u __attribute__((vector_size(2 * lanes), aligned(2), may_alias));
TREADLE_VECTOR_TYPES(4)
TREADLE_VECTOR_TYPES(8)
TREADLE_VECTOR_TYPES(16)

/* The bits of a float as an integer of its width, and back. */
#define TREADLE_BITS(suffix, float_type, int_type)                                                   \
    TREADLE_INLINE int_type treadle_bits##suffix(float_type x) {                                     \
        int_type bits;                                                                               \
        __builtin_memcpy(&bits, &x, sizeof bits);                                                    \
        return bits;                                                                                 \
    }                                                                                                \
    TREADLE_INLINE float_type treadle_from_bits##suffix(int_type bits) {                             \
        float_type x;                                                                                \
        __builtin_memcpy(&x, &bits, sizeof x);                                                       \
        return x;                                                                                    \
    }
TREADLE_BITS(f, float, int)
TREADLE_BITS(, double, long long)
#undef TREADLE_BITS

/* To a float whose last bit says whether anything was cut off, so that rounding it again is rounding once. Source: Boldo
 * and Melquiond, "When double rounding is odd", 2005.
 */
TREADLE_INLINE float treadle_double_to_odd(double x) {
    const float nearest = (float)x;
    const unsigned bits = (unsigned)treadle_bitsf(nearest);
    /* An infinity comes back as the largest float, which is odd. */
    const unsigned cut = __builtin_fabs((double)nearest) > __builtin_fabs(x) ? bits - 1 : bits;
    return (double)nearest == x || x != x ? nearest : treadle_from_bitsf((int)(cut | 1u));
}

/* A bfloat16 in memory: the upper half of a float. Sums and products run in float. No struct, of which gcc 12 copies one
 * element at a time. */
typedef unsigned short treadle_bfloat16;
TREADLE_INLINE float treadle_bfloat16_to_float(treadle_bfloat16 x) {
    return treadle_from_bitsf((int)((unsigned)x << 16));
}
/* Rounds to nearest, ties to even; a NaN stays one. */
TREADLE_INLINE treadle_bfloat16 treadle_float_to_bfloat16(float x) {
    unsigned bits = (unsigned)treadle_bitsf(x);
    unsigned rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (treadle_bfloat16)(x != x ? bits >> 16 | 0x40u : rounded);
}
TREADLE_INLINE treadle_bfloat16 treadle_double_to_bfloat16(double x) {
    return treadle_float_to_bfloat16(treadle_double_to_odd(x));
}

/* The same bits, lane by lane. GCC 12 widens 16 lanes in two halves, which it puts together. */
#define TREADLE_WIDE_BITS_4(x) __builtin_convertvector(x, v4u)
#define TREADLE_WIDE_BITS_8(x) __builtin_convertvector(x, v8u)
#if defined(__AVX512F__) && !defined(__clang__)
typedef short treadle_shorts __attribute__((vector_size(32)));
#define TREADLE_WIDE_BITS_16(x) (v16u) __builtin_ia32_pmovzxwd512_mask((treadle_shorts)x, (v16i){0}, -1)
#else
#define TREADLE_WIDE_BITS_16(x) __builtin_convertvector(x, v16u)
#endif
#define TREADLE_BFLOAT16_LANES(lanes)                                                                \
    TREADLE_INLINE v##lanes##f treadle_bfloat16_to_float_v##lanes##f(v##lanes##h x) {                \
        return (v##lanes##f)(TREADLE_WIDE_BITS_##lanes(x) << 16);                                    \
    }                                                                                                \
    TREADLE_INLINE v##lanes##h treadle_float_to_bfloat16_v##lanes##h(v##lanes##f x) {                \
        const v##lanes##u bits = (v##lanes##u)x, no_number = (v##lanes##u)(x != x);                  \
        const v##lanes##u rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;                      \
        const v##lanes##u result = (no_number & (bits >> 16 | 0x40u)) | (~no_number & rounded);      \
        return __builtin_convertvector(result, v##lanes##h);                                         \
    }
TREADLE_BFLOAT16_LANES(4)
TREADLE_BFLOAT16_LANES(8)
TREADLE_BFLOAT16_LANES(16)
#undef TREADLE_BFLOAT16_LANES

/* The same of float16, which a processor may have instructions for. */
#ifdef __FLT16_MANT_DIG__
#define TREADLE_SPLAT_FLOAT16(lanes)                                           \
    TREADLE_INLINE v##lanes##h treadle_splat_float16_v##lanes##h(_Float16 x) { \
        unsigned short bits;                                                   \
        __builtin_memcpy(&bits, &x, sizeof bits);                              \
        return (v##lanes##h){0} + bits;                                        \
    }
TREADLE_SPLAT_FLOAT16(4)
TREADLE_SPLAT_FLOAT16(8)
TREADLE_SPLAT_FLOAT16(16)
#undef TREADLE_SPLAT_FLOAT16
/* GCC 12 takes conversions of vectors to float16 and back for nothing; it does not look into assembly. */
#define TREADLE_FLOAT16_LANES(lanes)                                                 \
    TREADLE_INLINE v##lanes##f treadle_float16_to_float_v##lanes##f(v##lanes##h x) { \
        v##lanes##f wide;                                                            \
        for (int lane = 0; lane < lanes; lane++) {                                   \
            unsigned short bits = x[lane];                                           \
            _Float16 number;                                                         \
            __asm__("" : "+r"(bits));                                                \
            __builtin_memcpy(&number, &bits, sizeof number);                         \
            wide[lane] = (float)number;                                              \
        }                                                                            \
        return wide;                                                                 \
    }                                                                                \
    TREADLE_INLINE v##lanes##h treadle_float_to_float16_v##lanes##h(v##lanes##f x) { \
        v##lanes##h narrow;                                                          \
        for (int lane = 0; lane < lanes; lane++) {                                   \
            const _Float16 number = (_Float16)x[lane];                               \
            unsigned short bits;                                                     \
            __builtin_memcpy(&bits, &number, sizeof bits);                           \
            narrow[lane] = bits;                                                     \
        }                                                                            \
        return narrow;                                                               \
    }
#if defined(__F16C__)
#define TREADLE_FLOAT16_REGISTERS(lanes, registers)                                  \
    TREADLE_INLINE v##lanes##f treadle_float16_to_float_v##lanes##f(v##lanes##h x) { \
        v##lanes##f wide;                                                            \
        __asm__("vcvtph2ps %1, %0" : "=" registers(wide) : registers "m"(x));        \
        return wide;                                                                 \
    }                                                                                \
    TREADLE_INLINE v##lanes##h treadle_float_to_float16_v##lanes##h(v##lanes##f x) { \
        v##lanes##h narrow;                                                          \
        __asm__("vcvtps2ph $0, %1, %0" : "=" registers(narrow) : registers(x));      \
        return narrow;                                                               \
    }
TREADLE_FLOAT16_REGISTERS(8, "x")
#ifdef __AVX512F__
TREADLE_FLOAT16_REGISTERS(16, "v")
#else
TREADLE_FLOAT16_LANES(16)
#endif
#undef TREADLE_FLOAT16_REGISTERS
TREADLE_INLINE v4f treadle_float16_to_float_v4f(v4h x) {
    const v8h whole = {x[0], x[1], x[2], x[3]};
    v4f wide;
    __asm__("vcvtph2ps %1, %0" : "=x"(wide) : "x"(whole));
    return wide;
}
TREADLE_INLINE v4h treadle_float_to_float16_v4h(v4f x) {
    v8h whole;
    __asm__("vcvtps2ph $0, %1, %0" : "=x"(whole) : "x"(x));
    return (v4h){whole[0], whole[1], whole[2], whole[3]};
}
#elif defined(__aarch64__)
TREADLE_INLINE v4f treadle_float16_to_float_v4f(v4h x) {
    v4f wide;
    __asm__("fcvtl %0.4s, %1.4h" : "=w"(wide) : "w"(x));
    return wide;
}
TREADLE_INLINE v4h treadle_float_to_float16_v4h(v4f x) {
    v4h narrow;
    __asm__("fcvtn %0.4h, %1.4s" : "=w"(narrow) : "w"(x));
    return narrow;
}
TREADLE_FLOAT16_LANES(8)
TREADLE_FLOAT16_LANES(16)
#else
TREADLE_FLOAT16_LANES(4)
TREADLE_FLOAT16_LANES(8)
TREADLE_FLOAT16_LANES(16)
#endif
#undef TREADLE_FLOAT16_LANES
#endif

/* Two floats as bfloat16, the first in the lower half of 4 bytes. AVX512-BF16 counts subnormal numbers as zeros. */
TREADLE_INLINE int treadle_round_pairf(float even, float odd) {
    return (int)(treadle_float_to_bfloat16(even) | (unsigned)treadle_float_to_bfloat16(odd) << 16);
}
#define TREADLE_ROUND_PAIR(lanes)                                                                    \
    TREADLE_INLINE v##lanes##i treadle_round_pair_v##lanes##f(v##lanes##f even, v##lanes##f odd) {   \
        const v##lanes##u low = __builtin_convertvector(treadle_float_to_bfloat16_v##lanes##h(even), v##lanes##u); \
        const v##lanes##u high = __builtin_convertvector(treadle_float_to_bfloat16_v##lanes##h(odd), v##lanes##u); \
        return (v##lanes##i)(low | high << 16);                                                      \
    }
TREADLE_ROUND_PAIR(4)
TREADLE_ROUND_PAIR(8)
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
TREADLE_INLINE v16i treadle_round_pair_v16f(v16f even, v16f odd) {
    typedef short treadle_lanes __attribute__((vector_size(64)));
    static const treadle_lanes order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    v16i apart, pairs;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(apart) : "v"(odd), "v"(even));
    __asm__("vpermw %1, %2, %0" : "=v"(pairs) : "v"(apart), "v"(order));
    return pairs;
}
#else
TREADLE_ROUND_PAIR(16)
#endif
#undef TREADLE_ROUND_PAIR

/* Floats of 8 and 4 bits in memory: the low bits of a byte, a sign above a magnitude of `mantissa` bits below those of the
 * exponent. `highest` is the magnitude of the largest number, `infinite` that of infinity, `nan` the one that is made of
 * NaN, and `beyond` the one of numbers that are too large; `only_nan` the byte that is NaN where -0 would be, or 256.
 * Rounds to nearest, ties to even: normal numbers by adding to the bits below the last one; others are counted by the
 * last bit of a float that is so large that this bit is worth the smallest number.
 */
#define TREADLE_SMALL_FLOAT(name, mantissa, bias, sign, highest, infinite, nan, beyond, only_nan)    \
    TREADLE_INLINE float treadle_##name##_to_float(unsigned char byte) {                             \
        const unsigned x = byte, magnitude = x & (sign - 1u);                                        \
        const float unit = treadle_from_bitsf((128 - bias - mantissa) << 23);                        \
        const unsigned normal = (magnitude << (23 - mantissa)) + ((127u - bias) << 23);              \
        const float number = magnitude >> mantissa ? treadle_from_bitsf((int)normal) : (float)(int)magnitude * unit; \
        const float special = magnitude == infinite ? TREADLE_INFINITY : TREADLE_NAN;                \
        const float size = magnitude > highest || x == only_nan ? special : number;                  \
        return treadle_from_bitsf((int)((unsigned)treadle_bitsf(size) | (x & sign) * (0x80000000u / sign))); \
    }                                                                                                \
    TREADLE_INLINE unsigned char treadle_float_to_##name(float x) {                                  \
        const unsigned bits = (unsigned)treadle_bitsf(x), size = bits & 0x7fffffffu;                 \
        const unsigned rest = size - ((127u - bias) << 23);                                          \
        const unsigned normal = (rest + (1u << (22 - mantissa)) - 1 + (rest >> (23 - mantissa) & 1)) >> (23 - mantissa); \
        const int large = (151 - bias - mantissa) << 23;                                             \
        const int count = treadle_bitsf(treadle_from_bitsf((int)size) + treadle_from_bitsf(large)) - large; \
        const unsigned rounded = size < (128u - bias) << 23 ? (unsigned)count : normal;              \
        const unsigned number = rounded > highest ? beyond : rounded;                                \
        const unsigned magnitude = size > 0x7f800000u ? nan : number;                                \
        return (unsigned char)(only_nan < 256 && magnitude == 0 ? 0 : magnitude | (bits >> 31) * sign); \
    }                                                                                                \
    TREADLE_INLINE unsigned char treadle_double_to_##name(double x) {                                \
        return treadle_float_to_##name(treadle_double_to_odd(x));                                    \
    }
TREADLE_SMALL_FLOAT(f4E2M1FN, 1, 1, 0x8u, 0x7u, 0x100u, 0x0u, 0x7u, 0x100u)
TREADLE_SMALL_FLOAT(f8E4M3FN, 3, 7, 0x80u, 0x7eu, 0x100u, 0x7fu, 0x7fu, 0x100u)
TREADLE_SMALL_FLOAT(f8E4M3FNUZ, 3, 8, 0x80u, 0x7fu, 0x100u, 0x80u, 0x80u, 0x80u)
TREADLE_SMALL_FLOAT(f8E5M2, 2, 15, 0x80u, 0x7bu, 0x7cu, 0x7eu, 0x7cu, 0x100u)
TREADLE_SMALL_FLOAT(f8E5M2FNUZ, 2, 16, 0x80u, 0x7fu, 0x100u, 0x80u, 0x80u, 0x80u)
#undef TREADLE_SMALL_FLOAT
/* A power of two: the exponent of a float, of which 0 is that of a subnormal one. */
TREADLE_INLINE float treadle_f8E8M0FNU_to_float(unsigned char x) {
    return x == 0xff ? TREADLE_NAN : treadle_from_bitsf(x == 0 ? 0x400000 : x << 23);
}

TREADLE_INLINE float treadle_fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TREADLE_INLINE float treadle_absf(float x) { return __builtin_fabsf(x); }
TREADLE_INLINE float treadle_sqrtf(float x) { return __builtin_sqrtf(x); }
TREADLE_INLINE float treadle_floorf(float x) { return __builtin_floorf(x); }
TREADLE_INLINE float treadle_ceilf(float x) { return __builtin_ceilf(x); }
/* To the nearest whole number, ties to even. */
TREADLE_INLINE float treadle_roundf(float x) { return __builtin_rintf(x); }
/* At most 1.5 ulp. */
TREADLE_INLINE float treadle_rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
/* The C library's, hence one lane at a time. */
TREADLE_INLINE float treadle_powf(float x, float y) { return __builtin_powf(x, y); }
/* Where an angle comes from, the compiler must not know: of NaN, gcc 12 -fno-math-errno makes sin(atan(x)) 1 and
 * cos(atan(x)) 0. */
#define TREADLE_OF_AN_ANGLE(name, type, function)                                                    \
    TREADLE_INLINE type name(type x) {                                                               \
        __asm__("" : "+m"(x));                                                                       \
        return function(x);                                                                          \
    }
TREADLE_OF_AN_ANGLE(treadle_sinf, float, __builtin_sinf)
TREADLE_OF_AN_ANGLE(treadle_cosf, float, __builtin_cosf)
TREADLE_OF_AN_ANGLE(treadle_sin, double, __builtin_sin)
TREADLE_OF_AN_ANGLE(treadle_cos, double, __builtin_cos)

/* Maximum and minimum that return NaN if either operand is NaN (numpy's and ONNX's rule, not C's fmaxf). */
TREADLE_INLINE float treadle_maxf(float a, float b) { return b != b ? b : b > a ? b : a; }
TREADLE_INLINE float treadle_minf(float a, float b) { return b != b ? b : b < a ? b : a; }

#define TREADLE_IOTA_4 {0, 1, 2, 3}
#define TREADLE_IOTA_8 {0, 1, 2, 3, 4, 5, 6, 7}
#define TREADLE_IOTA_16 {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
/* Halves of a vector of twice as many lanes. */
#define TREADLE_LOW_4 0, 1, 2, 3
#define TREADLE_HIGH_4 4, 5, 6, 7
#define TREADLE_LOW_8 0, 1, 2, 3, 4, 5, 6, 7
#define TREADLE_HIGH_8 8, 9, 10, 11, 12, 13, 14, 15
/* Shuffles of two vectors: those that make every second element of the first and, from its second one, of the other; of
 * both; and the lanes of a mask, each before one of zeros. */
#define TREADLE_SECOND_4 0, 2, 5, 7
#define TREADLE_SECOND_8 0, 2, 4, 6, 9, 11, 13, 15
#define TREADLE_SECOND_16 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31
#define TREADLE_EVEN_4 0, 2, 4, 6
#define TREADLE_EVEN_8 0, 2, 4, 6, 8, 10, 12, 14
#define TREADLE_EVEN_16 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define TREADLE_SPREAD_LOW_4 0, 4, 1, 5
#define TREADLE_SPREAD_HIGH_4 2, 6, 3, 7
#define TREADLE_SPREAD_LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define TREADLE_SPREAD_HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define TREADLE_SPREAD_LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define TREADLE_SPREAD_HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* v<lanes>m: which lanes are on, as the instructions that take it want it: lanes of -1 and 0, as comparisons of vectors
 * give, and with AVX-512 a bit for each of 16. Those from lane `lo` up to, without, lane `hi` are made of the two numbers:
 * gcc 12 takes a quarter longer for a kernel where bits come from a vector of lane numbers (docs/adr/0059). */
typedef v4i v4m;
typedef v8i v8m;
#define TREADLE_IS_ON_4(on, lane) ((on)[lane])
#define TREADLE_IS_ON_8(on, lane) ((on)[lane])
#if defined(__AVX512F__)
typedef unsigned short v16m;
#define TREADLE_IS_ON_16(on, lane) ((on) >> (lane) & 1)
#else
typedef v16i v16m;
#define TREADLE_IS_ON_16(on, lane) ((on)[lane])
#endif
/* A bound, or 0: no branch, on which gcc 12 would divide the loop around it into two. */
TREADLE_INLINE long treadle_if(int condition, long bound) { return -(long)(condition != 0) & bound; }
#define TREADLE_CLAMPED(bound, lanes) ((int)((bound) < 0 ? 0 : (bound) > (lanes) ? (lanes) : (bound)))
#define TREADLE_MASK_OF_LANES(lanes)                                                                 \
    TREADLE_INLINE v##lanes##m treadle_lanes_v##lanes##m(long lo, long hi) {                         \
        const v##lanes##i lane = TREADLE_IOTA_##lanes;                                               \
        return (lane >= TREADLE_CLAMPED(lo, lanes)) & (lane < TREADLE_CLAMPED(hi, lanes));           \
    }                                                                                                \
    /* A mask of lanes of -1 and 0 as one for access, and back. */                                   \
    TREADLE_INLINE v##lanes##m treadle_mask_v##lanes##i(v##lanes##i on) { return on; }               \
    TREADLE_INLINE v##lanes##i treadle_on_v##lanes##i(v##lanes##m on) { return on; }                 \
    TREADLE_INLINE int treadle_some_v##lanes##m(v##lanes##m on) {                                    \
        int some = 0;                                                                                \
        for (int l = 0; l < lanes; l++) some |= on[l];                                               \
        return some;                                                                                 \
    }
TREADLE_MASK_OF_LANES(4)
TREADLE_MASK_OF_LANES(8)
#if defined(__AVX512F__) && defined(__clang__)
#define TREADLE_BLEND(suffix, on, a, b) __builtin_ia32_select##suffix##_512(on, a, b)
#elif defined(__AVX512F__)
#define TREADLE_BLEND(suffix, on, a, b) __builtin_ia32_blendm##suffix##_512_mask(b, a, on)
#endif
#if defined(__AVX512F__)
TREADLE_INLINE v16m treadle_lanes_v16m(long lo, long hi) {
    return (v16m)(((1u << TREADLE_CLAMPED(hi, 16)) - 1) & ~((1u << TREADLE_CLAMPED(lo, 16)) - 1));
}
TREADLE_INLINE v16m treadle_mask_v16i(v16i on) { return (v16m)__builtin_ia32_cmpd512_mask(on, (v16i){0}, 1, -1); }
TREADLE_INLINE v16i treadle_on_v16i(v16m on) { return TREADLE_BLEND(d, on, (v16i){0} - 1, (v16i){0}); }
TREADLE_INLINE int treadle_some_v16m(v16m on) { return on; }
#else
TREADLE_MASK_OF_LANES(16)
#endif
#undef TREADLE_MASK_OF_LANES

/* AddressSanitizer checks lanes that are accessed one by one, and nothing of an instruction that takes a mask. */
#if defined(__SANITIZE_ADDRESS__)
#define TREADLE_CHECKED 1
#elif defined(__has_feature)
#define TREADLE_CHECKED __has_feature(address_sanitizer)
#else
#define TREADLE_CHECKED 0
#endif
#define TREADLE_LOAD_LANES(lanes)                                                      \
    for (int l = 0; l < lanes; l++) if (TREADLE_IS_ON_##lanes(on, l)) rest[l] = p[l]; \
    return rest;
#define TREADLE_STORE_LANES(lanes) for (int l = 0; l < lanes; l++) if (TREADLE_IS_ON_##lanes(on, l)) p[l] = x[l];
#if defined(__AVX__) && !TREADLE_CHECKED
/* Lanes that are off are read as 0. Not left to the loop over the lanes: of two such loads under opposite conditions,
 * gcc 12.2 -O3 -mavx2 loses one. */
#define TREADLE_LOAD_WHERE_4 return (v4f)((v4i)__builtin_ia32_maskloadps((const v4f *)p, on) | (~on & (v4i)rest));
#define TREADLE_STORE_WHERE_4 __builtin_ia32_maskstoreps((v4f *)p, on, x);
#define TREADLE_LOAD_WHERE_8 return (v8f)((v8i)__builtin_ia32_maskloadps256((const v8f *)p, on) | (~on & (v8i)rest));
#define TREADLE_STORE_WHERE_8 __builtin_ia32_maskstoreps256((v8f *)p, on, x);
#else
#define TREADLE_LOAD_WHERE_4 TREADLE_LOAD_LANES(4)
#define TREADLE_STORE_WHERE_4 TREADLE_STORE_LANES(4)
#define TREADLE_LOAD_WHERE_8 TREADLE_LOAD_LANES(8)
#define TREADLE_STORE_WHERE_8 TREADLE_STORE_LANES(8)
#endif
#if defined(__AVX512F__) && !TREADLE_CHECKED
#define TREADLE_LOAD_WHERE_16 return __builtin_ia32_loadups512_mask(p, rest, on);
#define TREADLE_STORE_WHERE_16 __builtin_ia32_storeups512_mask(p, x, on);
#elif defined(__AVX__) && !TREADLE_CHECKED
#define TREADLE_HALF(x, half) __builtin_shufflevector(x, x, TREADLE_##half##_8)
#define TREADLE_LOAD_HALF(p, half) \
    treadle_load_where_v8f(p, TREADLE_HALF(on, half), TREADLE_HALF(rest, half))
#define TREADLE_LOAD_WHERE_16                                                                         \
    return __builtin_shufflevector(TREADLE_LOAD_HALF(p, LOW), TREADLE_LOAD_HALF(p + 8, HIGH),         \
                                   TREADLE_LOW_8, TREADLE_HIGH_8);
#define TREADLE_STORE_WHERE_16                                                                        \
    treadle_store_where_v8f(p, TREADLE_HALF(x, LOW), TREADLE_HALF(on, LOW));                          \
    treadle_store_where_v8f(p + 8, TREADLE_HALF(x, HIGH), TREADLE_HALF(on, HIGH));
#else
#define TREADLE_LOAD_WHERE_16 TREADLE_LOAD_LANES(16)
#define TREADLE_STORE_WHERE_16 TREADLE_STORE_LANES(16)
#endif

/* Elements `stride` apart of the lanes that are on, in one instruction that touches no memory of the others, where offsets
 * of 32 bits reach them. Lanes one by one cost gcc 12 most of its time for a kernel, and calls more (docs/adr/0059). */
#define TREADLE_REACHES(stride) ((stride) < 1L << 27 && (stride) > -(1L << 27))
#if defined(__AVX2__) && defined(__clang__)
#define TREADLE_GATHER_4 __builtin_ia32_gatherd_ps
#define TREADLE_GATHER_8 __builtin_ia32_gatherd_ps256
#elif defined(__AVX2__)
#define TREADLE_GATHER_4 __builtin_ia32_gathersiv4sf
#define TREADLE_GATHER_8 __builtin_ia32_gathersiv8sf
#endif
#if defined(__AVX2__) && !TREADLE_CHECKED
#define TREADLE_GATHER_WHERE(lanes) \
    if (TREADLE_REACHES(stride))    \
        return TREADLE_GATHER_##lanes(rest, p, (v##lanes##i)TREADLE_IOTA_##lanes * (int)stride, (v##lanes##f)on, 4);
#define TREADLE_GATHER_WHERE_4 TREADLE_GATHER_WHERE(4)
#define TREADLE_GATHER_WHERE_8 TREADLE_GATHER_WHERE(8)
#else
#define TREADLE_GATHER_WHERE_4
#define TREADLE_GATHER_WHERE_8
#endif
#if defined(__AVX512F__) && !TREADLE_CHECKED
#define TREADLE_GATHER_WHERE_16  \
    if (TREADLE_REACHES(stride)) \
        return __builtin_ia32_gathersiv16sf(rest, p, (v16i)TREADLE_IOTA_16 * (int)stride, on, 4);
#elif defined(__AVX2__) && !TREADLE_CHECKED
#define TREADLE_GATHER_HALF(p, half) \
    treadle_load_strided_where_v8f(p, stride, TREADLE_HALF(on, half), TREADLE_HALF(rest, half))
#define TREADLE_GATHER_WHERE_16                                                                           \
    return __builtin_shufflevector(TREADLE_GATHER_HALF(p, LOW), TREADLE_GATHER_HALF(p + 8 * stride, HIGH), \
                                   TREADLE_LOW_8, TREADLE_HIGH_8);
#else
#define TREADLE_GATHER_WHERE_16
#endif

#define TREADLE_SELECT_WHERE_4 return treadle_select_v4f(on, a, b);
#define TREADLE_SELECT_WHERE_8 return treadle_select_v8f(on, a, b);
#if defined(__AVX512F__)
#define TREADLE_SELECT_WHERE_16 return TREADLE_BLEND(ps, on, a, b);
#else
#define TREADLE_SELECT_WHERE_16 return treadle_select_v16f(on, a, b);
#endif

/* Lane by lane a > b ? a : b, and a < b ? a : b: one instruction of x86, for which gcc 12 writes a comparison and a
 * selection. */
#if defined(__x86_64__)
#define TREADLE_GREATER_4(a, b) __builtin_ia32_maxps(a, b)
#define TREADLE_LESS_4(a, b) __builtin_ia32_minps(a, b)
#else
#define TREADLE_GREATER_4(a, b) treadle_select_v4f((a) > (b), a, b)
#define TREADLE_LESS_4(a, b) treadle_select_v4f((a) < (b), a, b)
#endif
#if defined(__AVX__)
#define TREADLE_GREATER_8(a, b) __builtin_ia32_maxps256(a, b)
#define TREADLE_LESS_8(a, b) __builtin_ia32_minps256(a, b)
#else
#define TREADLE_GREATER_8(a, b) treadle_select_v8f((a) > (b), a, b)
#define TREADLE_LESS_8(a, b) treadle_select_v8f((a) < (b), a, b)
#endif
#if defined(__AVX512F__) && defined(__clang__)
#define TREADLE_GREATER_16(a, b) __builtin_ia32_maxps512(a, b, 4)
#define TREADLE_LESS_16(a, b) __builtin_ia32_minps512(a, b, 4)
#elif defined(__AVX512F__)
#define TREADLE_GREATER_16(a, b) __builtin_ia32_maxps512_mask(a, b, b, -1, 4)
#define TREADLE_LESS_16(a, b) __builtin_ia32_minps512_mask(a, b, b, -1, 4)
#else
#define TREADLE_GREATER_16(a, b) treadle_select_v16f((a) > (b), a, b)
#define TREADLE_LESS_16(a, b) treadle_select_v16f((a) < (b), a, b)
#endif

/* The vector side of one width: access, selection, reductions, and the lane-wise functions that compilers know. */
#define TREADLE_LANEWISE(lanes, name, scalar)                                                        \
    TREADLE_INLINE v##lanes##f treadle_##name##_v##lanes##f(v##lanes##f x) {                         \
        v##lanes##f y;                                                                               \
        for (int l = 0; l < lanes; l++) y[l] = scalar(x[l]);                                         \
        return y;                                                                                    \
    }
#define TREADLE_LANEWISE2(lanes, name, scalar)                                                       \
    TREADLE_INLINE v##lanes##f treadle_##name##_v##lanes##f(v##lanes##f a, v##lanes##f b) {          \
        v##lanes##f y;                                                                               \
        for (int l = 0; l < lanes; l++) y[l] = scalar(a[l], b[l]);                                   \
        return y;                                                                                    \
    }
#define TREADLE_VECTOR_BASICS(lanes)                                                                 \
    /* Any float-aligned address. */                                                                 \
    TREADLE_INLINE v##lanes##f treadle_load_v##lanes##f(const float *p) {                            \
        return *(const v##lanes##f_u *)p;                                                            \
    }                                                                                                \
    TREADLE_INLINE void treadle_store_v##lanes##f(float *p, v##lanes##f x) {                         \
        *(v##lanes##f_u *)p = x;                                                                     \
    }                                                                                                \
    /* The first n lanes only (n may be <= 0 or >= lanes); the other lanes read as zero and are not touched. */ \
    TREADLE_INLINE v##lanes##f treadle_load_first_v##lanes##f(const float *p, long n) {              \
        v##lanes##f x = {0};                                                                         \
        if (n >= lanes) return *(const v##lanes##f_u *)p;                                            \
        for (int l = 0; l < lanes; l++) if (l < n) x[l] = p[l];                                      \
        return x;                                                                                    \
    }                                                                                                \
    TREADLE_INLINE void treadle_store_first_v##lanes##f(float *p, v##lanes##f x, long n) {           \
        if (n >= lanes) {                                                                            \
            *(v##lanes##f_u *)p = x;                                                                 \
            return;                                                                                  \
        }                                                                                            \
        for (int l = 0; l < lanes; l++) if (l < n) p[l] = x[l];                                      \
    }                                                                                                \
    /* Lanes of `mask` are -1 (take a) or 0 (take b), as vector comparisons yield them. */           \
    TREADLE_INLINE v##lanes##f treadle_select_v##lanes##f(v##lanes##i mask, v##lanes##f a, v##lanes##f b) { \
        return (v##lanes##f)((mask & (v##lanes##i)a) | (~mask & (v##lanes##i)b));                    \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_select_where_v##lanes##f(v##lanes##m on, v##lanes##f a, v##lanes##f b) { \
        TREADLE_SELECT_WHERE_##lanes                                                                 \
    }                                                                                                \
    /* The lanes that are on come from or go to memory; the others are `rest`, or not touched. */    \
    TREADLE_INLINE v##lanes##f treadle_load_where_v##lanes##f(                                       \
        const float *p, v##lanes##m on, v##lanes##f rest) {                                          \
        TREADLE_LOAD_WHERE_##lanes                                                                   \
    }                                                                                                \
    TREADLE_INLINE void treadle_store_where_v##lanes##f(float *p, v##lanes##f x, v##lanes##m on) {   \
        TREADLE_STORE_WHERE_##lanes                                                                  \
    }                                                                                                \
    /* Every second element, of which the last one read is p[2 * lanes - 2]. */                       \
    TREADLE_INLINE v##lanes##f treadle_load_second_v##lanes##f(const float *p) {                     \
        const v##lanes##f a = treadle_load_v##lanes##f(p), b = treadle_load_v##lanes##f(p + lanes - 1); \
        return __builtin_shufflevector(a, b, TREADLE_SECOND_##lanes);                                \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_load_second_where_v##lanes##f(                                \
        const float *p, v##lanes##m on, v##lanes##f rest) {                                          \
        const v##lanes##f none = {0};                                                                \
        const v##lanes##i off = {0}, each = treadle_on_v##lanes##i(on);                              \
        const v##lanes##i on_a = __builtin_shufflevector(each, off, TREADLE_SPREAD_LOW_##lanes);     \
        const v##lanes##i on_b = __builtin_shufflevector(each, off, TREADLE_SPREAD_HIGH_##lanes);    \
        const v##lanes##f a = treadle_load_where_v##lanes##f(p, treadle_mask_v##lanes##i(on_a), none); \
        const v##lanes##f b = treadle_load_where_v##lanes##f(p + lanes, treadle_mask_v##lanes##i(on_b), none); \
        return treadle_select_where_v##lanes##f(on, __builtin_shufflevector(a, b, TREADLE_EVEN_##lanes), rest); \
    }                                                                                                \
    /* Elements `stride` apart. */                                                                   \
    TREADLE_INLINE v##lanes##f treadle_load_strided_v##lanes##f(const float *p, long stride) {       \
        v##lanes##f x;                                                                               \
        if (__builtin_constant_p(stride) && stride == 2) return treadle_load_second_v##lanes##f(p);  \
        for (int l = 0; l < lanes; l++) x[l] = p[l * stride];                                        \
        return x;                                                                                    \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_load_splat_v##lanes##f(const float *p) { return *p - (v##lanes##f){0}; } \
    /* One element for all lanes that are on; it is read only if there is one. */                    \
    TREADLE_INLINE v##lanes##f treadle_load_splat_where_v##lanes##f(                                 \
        const float *p, v##lanes##m on, v##lanes##f rest) {                                          \
        if (!treadle_some_v##lanes##m(on)) return rest;                                              \
        return treadle_select_where_v##lanes##f(on, *p - (v##lanes##f){0}, rest);                    \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_load_strided_where_v##lanes##f(                               \
        const float *p, long stride, v##lanes##m on, v##lanes##f rest) {                             \
        if (__builtin_constant_p(stride) && stride == 2)                                             \
            return treadle_load_second_where_v##lanes##f(p, on, rest);                               \
        TREADLE_GATHER_WHERE_##lanes                                                                 \
        /* Mostly all lanes are on, which takes no branch for each. */                               \
        int all = -1;                                                                                \
        for (int l = 0; l < lanes; l++) all &= TREADLE_IS_ON_##lanes(on, l);                         \
        if (all) return treadle_load_strided_v##lanes##f(p, stride);                                 \
        for (int l = 0; l < lanes; l++) if (TREADLE_IS_ON_##lanes(on, l)) rest[l] = p[l * stride];   \
        return rest;                                                                                 \
    }                                                                                                \
    TREADLE_INLINE void treadle_store_strided_v##lanes##f(float *p, long stride, v##lanes##f x) {    \
        for (int l = 0; l < lanes; l++) p[l * stride] = x[l];                                        \
    }                                                                                                \
    TREADLE_INLINE void treadle_store_strided_where_v##lanes##f(                                     \
        float *p, long stride, v##lanes##f x, v##lanes##m on) {                                      \
        for (int l = 0; l < lanes; l++) if (TREADLE_IS_ON_##lanes(on, l)) p[l * stride] = x[l];      \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_splat_v##lanes##f(float x) {                                  \
        return x - (v##lanes##f){0};                                                                 \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_max_v##lanes##f(v##lanes##f a, v##lanes##f b) {               \
        /* Of a constant b, compilers fold the selection. */                                         \
        return treadle_select_v##lanes##f(b != b, b, TREADLE_GREATER_##lanes(b, a));                 \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_min_v##lanes##f(v##lanes##f a, v##lanes##f b) {               \
        return treadle_select_v##lanes##f(b != b, b, TREADLE_LESS_##lanes(b, a));                    \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_abs_v##lanes##f(v##lanes##f x) {                              \
        return (v##lanes##f)((v##lanes##i)x & 0x7fffffff);                                           \
    }                                                                                                \
    TREADLE_INLINE v##lanes##f treadle_fma_v##lanes##f(v##lanes##f a, v##lanes##f b, v##lanes##f c) { \
        v##lanes##f y;                                                                               \
        for (int l = 0; l < lanes; l++) y[l] = __builtin_fmaf(a[l], b[l], c[l]);                     \
        return y;                                                                                    \
    }                                                                                                \
    TREADLE_LANEWISE(lanes, sqrt, treadle_sqrtf)                                                     \
    TREADLE_LANEWISE(lanes, floor, treadle_floorf)                                                   \
    TREADLE_LANEWISE(lanes, ceil, treadle_ceilf)                                                     \
    TREADLE_LANEWISE(lanes, round, treadle_roundf)                                                   \
    TREADLE_LANEWISE(lanes, rsqrt, treadle_rsqrtf)                                                   \
    TREADLE_LANEWISE(lanes, sin, treadle_sinf)                                                       \
    TREADLE_LANEWISE(lanes, cos, treadle_cosf)                                                       \
    TREADLE_LANEWISE2(lanes, pow, treadle_powf)
TREADLE_VECTOR_BASICS(4)
TREADLE_VECTOR_BASICS(8)
TREADLE_VECTOR_BASICS(16)

/* A square of vectors transposed in place: in step d, vectors i and i + d change the lanes that differ from it in bit d. */
#define TREADLE_CROSS_LOW_4_1 0, 4, 2, 6
#define TREADLE_CROSS_HIGH_4_1 1, 5, 3, 7
#define TREADLE_CROSS_LOW_4_2 0, 1, 4, 5
#define TREADLE_CROSS_HIGH_4_2 2, 3, 6, 7
#define TREADLE_CROSS_LOW_8_1 0, 8, 2, 10, 4, 12, 6, 14
#define TREADLE_CROSS_HIGH_8_1 1, 9, 3, 11, 5, 13, 7, 15
#define TREADLE_CROSS_LOW_8_2 0, 1, 8, 9, 4, 5, 12, 13
#define TREADLE_CROSS_HIGH_8_2 2, 3, 10, 11, 6, 7, 14, 15
#define TREADLE_CROSS_LOW_8_4 0, 1, 2, 3, 8, 9, 10, 11
#define TREADLE_CROSS_HIGH_8_4 4, 5, 6, 7, 12, 13, 14, 15
#define TREADLE_CROSS_LOW_16_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define TREADLE_CROSS_HIGH_16_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define TREADLE_CROSS_LOW_16_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define TREADLE_CROSS_HIGH_16_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define TREADLE_CROSS_LOW_16_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define TREADLE_CROSS_HIGH_16_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define TREADLE_CROSS_LOW_16_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define TREADLE_CROSS_HIGH_16_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define TREADLE_CROSS(lanes, step)                                                                   \
    TREADLE_UNROLL(lanes)                                                                            \
    for (int i = 0; i < lanes; i++) if (!(i & step)) {                                               \
        const v##lanes##f a = x[i], b = x[i + step];                                                 \
        x[i] = __builtin_shufflevector(a, b, TREADLE_CROSS_LOW_##lanes##_##step);                    \
        x[i + step] = __builtin_shufflevector(a, b, TREADLE_CROSS_HIGH_##lanes##_##step);            \
    }
TREADLE_INLINE void treadle_transpose_v4f(v4f *x) { TREADLE_CROSS(4, 1) TREADLE_CROSS(4, 2) }
TREADLE_INLINE void treadle_transpose_v8f(v8f *x) { TREADLE_CROSS(8, 1) TREADLE_CROSS(8, 2) TREADLE_CROSS(8, 4) }
TREADLE_INLINE void treadle_transpose_v16f(v16f *x) {
    TREADLE_CROSS(16, 1) TREADLE_CROSS(16, 2) TREADLE_CROSS(16, 4) TREADLE_CROSS(16, 8)
}

/* Reductions of all lanes, by halves: lane l meets lane l + lanes/2, and so on. Of halves that are copied as memory, gcc 12
 * takes the upper one out of a register of 64 bytes, where the processor has some. */
#define TREADLE_REDUCE_4(name, meet)                                                                 \
    TREADLE_INLINE float treadle_reduce_##name##_v4f(v4f x) {                                        \
        return meet(meet(x[0], x[2]), meet(x[1], x[3]));                                             \
    }
#define TREADLE_REDUCE(lanes, half, name, meet)                                                      \
    TREADLE_INLINE float treadle_reduce_##name##_v##lanes##f(v##lanes##f x) {                        \
        const v##half##f low = __builtin_shufflevector(x, x, TREADLE_LOW_##half);                    \
        const v##half##f high = __builtin_shufflevector(x, x, TREADLE_HIGH_##half);                  \
        return treadle_reduce_##name##_v##half##f(meet(low, high));                                  \
    }
#define TREADLE_ADD(a, b) ((a) + (b))
TREADLE_REDUCE_4(add, TREADLE_ADD)
TREADLE_REDUCE_4(max, treadle_maxf)
TREADLE_REDUCE_4(min, treadle_minf)
TREADLE_REDUCE(8, 4, add, TREADLE_ADD)
TREADLE_REDUCE(8, 4, max, treadle_max_v4f)
TREADLE_REDUCE(8, 4, min, treadle_min_v4f)
TREADLE_REDUCE(16, 8, add, TREADLE_ADD)
TREADLE_REDUCE(16, 8, max, treadle_max_v8f)
TREADLE_REDUCE(16, 8, min, treadle_min_v8f)

/* exp, log, tanh, erf: one text, read once a type. */
#define TREADLE_F float
#define TREADLE_I int
#define TREADLE_U unsigned
#define TREADLE_NAME(op) treadle_##op##f
#define TREADLE_BITS(x) treadle_bitsf(x)
#define TREADLE_FROM_BITS(bits) treadle_from_bitsf(bits)
#define TREADLE_SELECT(mask, a, b) ((mask) ? (a) : (b))
#define TREADLE_LESS(a, b) ((a) < (b) ? (a) : (b))
#define TREADLE_GREATER(a, b) ((a) > (b) ? (a) : (b))
#define TREADLE_TO_FLOAT(i) ((float)(i))
#include "treadle_math.h"

#define TREADLE_F v4f
#define TREADLE_I v4i
#define TREADLE_U v4u
#define TREADLE_NAME(op) treadle_##op##_v4f
#define TREADLE_BITS(x) ((v4i)(x))
#define TREADLE_FROM_BITS(bits) ((v4f)(bits))
#define TREADLE_SELECT(mask, a, b) treadle_select_v4f(mask, a, b)
#define TREADLE_LESS(a, b) TREADLE_LESS_4(a, b)
#define TREADLE_GREATER(a, b) TREADLE_GREATER_4(a, b)
#define TREADLE_TO_FLOAT(i) __builtin_convertvector(i, v4f)
#include "treadle_math.h"

#define TREADLE_F v8f
#define TREADLE_I v8i
#define TREADLE_U v8u
#define TREADLE_NAME(op) treadle_##op##_v8f
#define TREADLE_BITS(x) ((v8i)(x))
#define TREADLE_FROM_BITS(bits) ((v8f)(bits))
#define TREADLE_SELECT(mask, a, b) treadle_select_v8f(mask, a, b)
#define TREADLE_LESS(a, b) TREADLE_LESS_8(a, b)
#define TREADLE_GREATER(a, b) TREADLE_GREATER_8(a, b)
#define TREADLE_TO_FLOAT(i) __builtin_convertvector(i, v8f)
#include "treadle_math.h"

#define TREADLE_F v16f
#define TREADLE_I v16i
#define TREADLE_U v16u
#define TREADLE_NAME(op) treadle_##op##_v16f
#define TREADLE_BITS(x) ((v16i)(x))
#define TREADLE_FROM_BITS(bits) ((v16f)(bits))
#define TREADLE_SELECT(mask, a, b) treadle_select_v16f(mask, a, b)
#define TREADLE_LESS(a, b) TREADLE_LESS_16(a, b)
#define TREADLE_GREATER(a, b) TREADLE_GREATER_16(a, b)
#define TREADLE_TO_FLOAT(i) __builtin_convertvector(i, v16f)
#include "treadle_math.h"

/* Before a loop whose iterations are independent of each other, so that the compiler need not prove it. */
#if defined(__clang__)
#define TREADLE_INDEPENDENT TREADLE_PRAGMA(clang loop vectorize(assume_safety))
#else
#define TREADLE_INDEPENDENT TREADLE_PRAGMA(GCC ivdep)
#endif

/* Whole numbers. Quotients round towards zero (div), minus (floordiv) or plus infinity (ceildiv). A quotient or a
 * remainder by 0 is 0, and the lowest number divided by -1 is itself. Neither traps, as C's operators would.
 */
#define TREADLE_INTEGER(name, type)                                                                  \
    TREADLE_INLINE type treadle_min_##name(type a, type b) { return a < b ? a : b; }                 \
    TREADLE_INLINE type treadle_max_##name(type a, type b) { return a > b ? a : b; }                 \
    TREADLE_INLINE type treadle_div_##name(type a, type b) {                                         \
        const type quotient = (type)(a / (b == 0 || b == -1 ? 1 : b));                               \
        return b == 0 ? 0 : b == -1 ? (type)(0ull - (unsigned long long)a) : quotient;               \
    }                                                                                                \
    TREADLE_INLINE type treadle_rem_##name(type a, type b) {                                         \
        return (type)(a % (b == 0 || b == -1 ? 1 : b));                                              \
    }                                                                                                \
    TREADLE_INLINE type treadle_floordiv_##name(type a, type b) {                                    \
        const type rest = treadle_rem_##name(a, b);                                                  \
        return (type)(treadle_div_##name(a, b) - (rest != 0 && (rest < 0) != (b < 0)));              \
    }                                                                                                \
    TREADLE_INLINE type treadle_ceildiv_##name(type a, type b) {                                     \
        const type rest = treadle_rem_##name(a, b);                                                  \
        return (type)(treadle_div_##name(a, b) + (rest != 0 && (rest < 0) == (b < 0)));              \
    }
TREADLE_INTEGER(i8, signed char)
TREADLE_INTEGER(i16, short)
TREADLE_INTEGER(i32, int)
TREADLE_INTEGER(i64, long long)
#undef TREADLE_INTEGER
#define TREADLE_UNSIGNED(name, type)                                                                 \
    TREADLE_INLINE type treadle_min_##name(type a, type b) { return a < b ? a : b; }                 \
    TREADLE_INLINE type treadle_max_##name(type a, type b) { return a > b ? a : b; }                 \
    TREADLE_INLINE type treadle_div_##name(type a, type b) {                                         \
        const type quotient = (type)(a / (b == 0 ? 1 : b));                                          \
        return b == 0 ? 0 : quotient;                                                                \
    }                                                                                                \
    TREADLE_INLINE type treadle_rem_##name(type a, type b) { return (type)(a % (b == 0 ? 1 : b)); }
TREADLE_UNSIGNED(ui8, unsigned char)
TREADLE_UNSIGNED(ui16, unsigned short)
TREADLE_UNSIGNED(ui32, unsigned)
TREADLE_UNSIGNED(ui64, unsigned long long)
#undef TREADLE_UNSIGNED

/* The whole part of a float; the lowest or the highest number if it lies beyond, 0 for NaN. `end` is highest + 1. */
#define TREADLE_TRUNCATE(from, float_type, to, type, end)                                            \
    TREADLE_INLINE type treadle_##from##_to_##to(float_type x) {                                     \
        const type highest = (type)(~0ull >> (65 - 8 * sizeof(type))), lowest = (type)(-highest - 1); \
        const type whole = (type)(x >= -(end) && x < (end) ? x : 0);                                 \
        return x >= (end) ? highest : x < -(end) ? lowest : whole;                                   \
    }
#define TREADLE_TRUNCATE_UNSIGNED(from, float_type, to, type, end)                                   \
    TREADLE_INLINE type treadle_##from##_to_##to(float_type x) {                                     \
        const type whole = (type)(x >= 0 && x < (end) ? x : 0);                                      \
        return x >= (end) ? (type)~0ull : whole;                                                      \
    }
#define TREADLE_TRUNCATIONS(from, float_type)                                                        \
    TREADLE_TRUNCATE(from, float_type, i8, signed char, (float_type)0x1p7)                           \
    TREADLE_TRUNCATE(from, float_type, i16, short, (float_type)0x1p15)                               \
    TREADLE_TRUNCATE(from, float_type, i32, int, (float_type)0x1p31)                                 \
    TREADLE_TRUNCATE(from, float_type, i64, long long, (float_type)0x1p63)                           \
    TREADLE_TRUNCATE_UNSIGNED(from, float_type, ui8, unsigned char, (float_type)0x1p8)               \
    TREADLE_TRUNCATE_UNSIGNED(from, float_type, ui16, unsigned short, (float_type)0x1p16)            \
    TREADLE_TRUNCATE_UNSIGNED(from, float_type, ui32, unsigned, (float_type)0x1p32)                  \
    TREADLE_TRUNCATE_UNSIGNED(from, float_type, ui64, unsigned long long, (float_type)0x1p64)
TREADLE_TRUNCATIONS(f32, float)
TREADLE_TRUNCATIONS(f64, double)
#undef TREADLE_TRUNCATIONS
#undef TREADLE_TRUNCATE
#undef TREADLE_TRUNCATE_UNSIGNED

/* Bytes as numbers, lane by lane, and back. GCC 12 takes lanes out one by one where elements become four times as wide or
 * a quarter, unless it is told the instruction; in two steps it does not. */
typedef char treadle_chars __attribute__((vector_size(16)));
typedef short v4s __attribute__((vector_size(8)));
typedef short v8s __attribute__((vector_size(16)));
typedef short v16s __attribute__((vector_size(32)));
#if defined(__clang__)
#define TREADLE_WIDENED(lanes, between, sign, x) __builtin_convertvector(x, v##lanes##i)
#else
#define TREADLE_WIDENED(lanes, between, sign, x) \
    __builtin_convertvector(__builtin_convertvector(x, v##lanes##between), v##lanes##i)
#endif
#define TREADLE_WIDENED_4 TREADLE_WIDENED
#if defined(__AVX2__) && !defined(__clang__)
#define TREADLE_WIDENED_8(lanes, between, sign, x) \
    (v8i)__builtin_ia32_pmov##sign##xbd256(          \
        (treadle_chars)__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7))
#else
#define TREADLE_WIDENED_8 TREADLE_WIDENED
#endif
#if defined(__AVX512F__) && !defined(__clang__)
#define TREADLE_WIDENED_16(lanes, between, sign, x) \
    (v16i)__builtin_ia32_pmov##sign##xbd512_mask((treadle_chars)x, (v16i){0}, -1)
#else
#define TREADLE_WIDENED_16 TREADLE_WIDENED
#endif
#if defined(__AVX512VL__) || defined(__clang__)
#define TREADLE_NARROWED(lanes, bytes, x) __builtin_convertvector(x, v##lanes##bytes)
#else
#define TREADLE_NARROWED(lanes, bytes, x) \
    __builtin_convertvector(__builtin_convertvector(x, v##lanes##h), v##lanes##bytes)
#endif
#define TREADLE_WIDE_BYTES(lanes)                                                                    \
    TREADLE_INLINE v##lanes##i treadle_ui8_to_i32_v##lanes##i(v##lanes##ub x) {                      \
        return TREADLE_WIDENED_##lanes(lanes, h, z, x);                                              \
    }                                                                                                \
    TREADLE_INLINE v##lanes##i treadle_i8_to_i32_v##lanes##i(v##lanes##b x) {                        \
        return TREADLE_WIDENED_##lanes(lanes, s, s, x);                                              \
    }
TREADLE_WIDE_BYTES(4)
TREADLE_WIDE_BYTES(8)
TREADLE_WIDE_BYTES(16)
#undef TREADLE_WIDE_BYTES

/* The entry of a table that the low four bits of each lane name. */
typedef float treadle_table __attribute__((vector_size(64)));
#define TREADLE_LOOKUP(lanes)                                                                        \
    TREADLE_INLINE v##lanes##f treadle_look_up_v##lanes##f(v##lanes##i at, treadle_table table) {    \
        v##lanes##f y;                                                                               \
        for (int i = 0; i < lanes; i++) y[i] = table[at[i] & 15];                                    \
        return y;                                                                                    \
    }
TREADLE_LOOKUP(4)
TREADLE_LOOKUP(8)
#if defined(__AVX512F__)
TREADLE_INLINE v16f treadle_look_up_v16f(v16i at, treadle_table table) {
    v16f y;
    __asm__("vpermps %2, %1, %0" : "=v"(y) : "v"(at), "v"(table));
    return y;
}
#else
TREADLE_LOOKUP(16)
#endif
#undef TREADLE_LOOKUP
#define treadle_lookup_v4f(at, ...) treadle_look_up_v4f(at, (treadle_table){__VA_ARGS__})
#define treadle_lookup_v8f(at, ...) treadle_look_up_v8f(at, (treadle_table){__VA_ARGS__})
#define treadle_lookup_v16f(at, ...) treadle_look_up_v16f(at, (treadle_table){__VA_ARGS__})

/* Bytes of the lanes that are on, as those of floats above. */
#define TREADLE_SOME_BYTES(lanes, bytes, type, load, store)                                          \
    TREADLE_INLINE v##lanes##bytes treadle_load_where_v##lanes##bytes(                               \
        const type *p, v##lanes##m on, v##lanes##bytes rest) {                                       \
        load                                                                                         \
    }                                                                                                \
    TREADLE_INLINE void treadle_store_where_v##lanes##bytes(type *p, v##lanes##bytes x, v##lanes##m on) { \
        store                                                                                        \
    }                                                                                                \
    TREADLE_INLINE v##lanes##bytes treadle_select_v##lanes##bytes(                                   \
        v##lanes##i mask, v##lanes##bytes a, v##lanes##bytes b) {                                    \
        const v##lanes##bytes on = (v##lanes##bytes)TREADLE_NARROWED(lanes, b, mask);                \
        return (on & a) | (~on & b);                                                                 \
    }
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !TREADLE_CHECKED
#define TREADLE_LOAD_BYTES_16(bytes) \
    return (bytes)__builtin_ia32_loaddquqi128_mask((const void *)p, (treadle_chars)rest, on);
#define TREADLE_STORE_BYTES_16 __builtin_ia32_storedquqi128_mask((void *)p, (treadle_chars)x, on);
#else
#define TREADLE_LOAD_BYTES_16(bytes) TREADLE_LOAD_LANES(16)
#define TREADLE_STORE_BYTES_16 TREADLE_STORE_LANES(16)
#endif
TREADLE_SOME_BYTES(4, b, signed char, TREADLE_LOAD_LANES(4), TREADLE_STORE_LANES(4))
TREADLE_SOME_BYTES(4, ub, unsigned char, TREADLE_LOAD_LANES(4), TREADLE_STORE_LANES(4))
TREADLE_SOME_BYTES(8, b, signed char, TREADLE_LOAD_LANES(8), TREADLE_STORE_LANES(8))
TREADLE_SOME_BYTES(8, ub, unsigned char, TREADLE_LOAD_LANES(8), TREADLE_STORE_LANES(8))
TREADLE_SOME_BYTES(16, b, signed char, TREADLE_LOAD_BYTES_16(v16b), TREADLE_STORE_BYTES_16)
TREADLE_SOME_BYTES(16, ub, unsigned char, TREADLE_LOAD_BYTES_16(v16ub), TREADLE_STORE_BYTES_16)
#undef TREADLE_SOME_BYTES

/* The same of 16 bits, bfloat16 or float16. */
typedef unsigned short treadle_bits16 __attribute__((may_alias));
#define TREADLE_SOME_SHORTS(lanes, load, store)                                                              \
    TREADLE_INLINE v##lanes##h treadle_load_where_v##lanes##h(const void *at, v##lanes##m on, v##lanes##h rest) { \
        const treadle_bits16 *p = (const treadle_bits16 *)at;                                                \
        load                                                                                                 \
    }                                                                                                        \
    TREADLE_INLINE void treadle_store_where_v##lanes##h(void *at, v##lanes##h x, v##lanes##m on) {           \
        treadle_bits16 *p = (treadle_bits16 *)at;                                                            \
        store                                                                                                \
    }                                                                                                        \
    TREADLE_INLINE v##lanes##h treadle_select_v##lanes##h(v##lanes##i mask, v##lanes##h a, v##lanes##h b) {  \
        const v##lanes##h on = __builtin_convertvector((v##lanes##u)mask, v##lanes##h);                      \
        return (on & a) | (~on & b);                                                                         \
    }
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !TREADLE_CHECKED
typedef short treadle_words __attribute__((vector_size(32)));
#define TREADLE_LOAD_SHORTS_16 \
    return (v16h)__builtin_ia32_loaddquhi256_mask((const void *)p, (treadle_words)rest, on);
#define TREADLE_STORE_SHORTS_16 __builtin_ia32_storedquhi256_mask((void *)p, (treadle_words)x, on);
#else
#define TREADLE_LOAD_SHORTS_16 TREADLE_LOAD_LANES(16)
#define TREADLE_STORE_SHORTS_16 TREADLE_STORE_LANES(16)
#endif
TREADLE_SOME_SHORTS(4, TREADLE_LOAD_LANES(4), TREADLE_STORE_LANES(4))
TREADLE_SOME_SHORTS(8, TREADLE_LOAD_LANES(8), TREADLE_STORE_LANES(8))
TREADLE_SOME_SHORTS(16, TREADLE_LOAD_SHORTS_16, TREADLE_STORE_SHORTS_16)
#undef TREADLE_SOME_SHORTS

/* The whole parts of floats as above, as the numbers that bytes are, and as bytes: clamped first, where NaN is no number
 * and becomes 0. */
#define TREADLE_TRUNCATE_LANES(lanes, to, bytes, lowest, highest, number)                            \
    TREADLE_INLINE v##lanes##i treadle_f32_to_##to##_v##lanes##i(v##lanes##f x) {                    \
        const v##lanes##f low = (v##lanes##f){0} + (lowest), high = (v##lanes##f){0} + (highest);    \
        const v##lanes##f above = treadle_select_v##lanes##f(number > low, number, low);             \
        const v##lanes##f inside = treadle_select_v##lanes##f(above < high, above, high);            \
        return __builtin_convertvector(inside, v##lanes##i);                                         \
    }                                                                                                \
    TREADLE_INLINE v##lanes##bytes treadle_f32_to_##to##_v##lanes##bytes(v##lanes##f x) {            \
        return TREADLE_NARROWED(lanes, bytes, treadle_f32_to_##to##_v##lanes##i(x));                 \
    }
#define TREADLE_BYTES_OF_LANES(lanes)                                                                \
    TREADLE_TRUNCATE_LANES(lanes, ui8, ub, 0.0f, 255.0f, x)                                          \
    TREADLE_TRUNCATE_LANES(lanes, i8, b, -128.0f, 127.0f, ((v##lanes##f)((x == x) & (v##lanes##i)x)))
TREADLE_BYTES_OF_LANES(4)
TREADLE_BYTES_OF_LANES(8)
TREADLE_BYTES_OF_LANES(16)
#undef TREADLE_TRUNCATE_LANES
#undef TREADLE_BYTES_OF_LANES

/* The C library's functions that have no version of their own here: one lane at a time. */
#define TREADLE_LIBRARY1(name, function)                                                             \
    TREADLE_INLINE float treadle_##name##f(float x) { return __builtin_##function##f(x); }           \
    TREADLE_LANEWISE(4, name, treadle_##name##f)                                                     \
    TREADLE_LANEWISE(8, name, treadle_##name##f)                                                     \
    TREADLE_LANEWISE(16, name, treadle_##name##f)
/* Of vectors, one instruction where there is one. */
#if defined(__AVX512F__)
#define TREADLE_NEAREST_16(x) return (v16f)__builtin_ia32_rndscaleps_mask(x, 8, x, -1, 4);
#endif
#if defined(__AVX__)
#define TREADLE_NEAREST_8(x) return (v8f)__builtin_ia32_roundps256(x, 8);
#endif
#if defined(__SSE4_1__)
#define TREADLE_NEAREST_4(x) return (v4f)__builtin_ia32_roundps(x, 8);
#endif
#define TREADLE_NEAREST_LANES(lanes, x) \
    v##lanes##f y; for (int l = 0; l < lanes; l++) y[l] = treadle_roundevenf(x[l]); return y;
#if !defined(TREADLE_NEAREST_16)
#define TREADLE_NEAREST_16(x) TREADLE_NEAREST_LANES(16, x)
#endif
#if !defined(TREADLE_NEAREST_8)
#define TREADLE_NEAREST_8(x) TREADLE_NEAREST_LANES(8, x)
#endif
#if !defined(TREADLE_NEAREST_4)
#define TREADLE_NEAREST_4(x) TREADLE_NEAREST_LANES(4, x)
#endif
#define TREADLE_LIBRARY2(name, function)                                                             \
    TREADLE_INLINE float treadle_##name##f(float x, float y) { return __builtin_##function##f(x, y); } \
    TREADLE_LANEWISE2(4, name, treadle_##name##f)                                                    \
    TREADLE_LANEWISE2(8, name, treadle_##name##f)                                                    \
    TREADLE_LANEWISE2(16, name, treadle_##name##f)
TREADLE_LIBRARY1(exp2, exp2)
TREADLE_LIBRARY1(expm1, expm1)
TREADLE_LIBRARY1(log1p, log1p)
TREADLE_INLINE float treadle_roundevenf(float x) { return __builtin_rintf(x); }
TREADLE_INLINE v4f treadle_roundeven_v4f(v4f x) { TREADLE_NEAREST_4(x) }
TREADLE_INLINE v8f treadle_roundeven_v8f(v8f x) { TREADLE_NEAREST_8(x) }
TREADLE_INLINE v16f treadle_roundeven_v16f(v16f x) { TREADLE_NEAREST_16(x) }
TREADLE_LIBRARY1(tan, tan)
TREADLE_LIBRARY1(trunc, trunc)
TREADLE_LIBRARY2(copysign, copysign)
/* Exact; the sign of x. */
TREADLE_LIBRARY2(mod, fmod)
/* The other operand if one is NaN. */
TREADLE_LIBRARY2(maxnum, fmax)
TREADLE_LIBRARY2(minnum, fmin)
#undef TREADLE_LIBRARY1
#undef TREADLE_LIBRARY2

/* Whether either is NaN; whether one is less than the other (false where either is NaN). */
TREADLE_INLINE int treadle_unorderedf(float a, float b) { return __builtin_isunordered(a, b); }
TREADLE_INLINE int treadle_differf(float a, float b) { return __builtin_islessgreater(a, b); }

/* A function of one float, lane by lane: what has neither a version above nor a name in this file. */
#define TREADLE_EACH_LANE(type, function, x)                                                         \
    __extension__({                                                                                  \
        const type treadle_lanes = (x);                                                              \
        type treadle_results;                                                                        \
        for (unsigned treadle_lane = 0; treadle_lane < sizeof(type) / sizeof(float); treadle_lane++) \
            treadle_results[treadle_lane] = function(treadle_lanes[treadle_lane]);                   \
        treadle_results;                                                                             \
    })

/* float64: the C library's functions. */
#define TREADLE_DOUBLE1(name, function) \
    TREADLE_INLINE double treadle_##name(double x) { return __builtin_##function(x); }
#define TREADLE_DOUBLE2(name, function) \
    TREADLE_INLINE double treadle_##name(double x, double y) { return __builtin_##function(x, y); }
TREADLE_DOUBLE1(abs, fabs)
TREADLE_DOUBLE1(ceil, ceil)
TREADLE_DOUBLE1(erf, erf)
TREADLE_DOUBLE1(exp, exp)
TREADLE_DOUBLE1(exp2, exp2)
TREADLE_DOUBLE1(expm1, expm1)
TREADLE_DOUBLE1(floor, floor)
TREADLE_DOUBLE1(log, log)
TREADLE_DOUBLE1(log1p, log1p)
TREADLE_DOUBLE1(roundeven, rint)
TREADLE_DOUBLE1(sqrt, sqrt)
TREADLE_DOUBLE1(tan, tan)
TREADLE_DOUBLE1(tanh, tanh)
TREADLE_DOUBLE1(trunc, trunc)
TREADLE_DOUBLE2(copysign, copysign)
TREADLE_DOUBLE2(maxnum, fmax)
TREADLE_DOUBLE2(minnum, fmin)
TREADLE_DOUBLE2(mod, fmod)
TREADLE_DOUBLE2(pow, pow)
TREADLE_INLINE double treadle_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
TREADLE_INLINE double treadle_max(double a, double b) { return b != b ? b : b > a ? b : a; }
TREADLE_INLINE double treadle_min(double a, double b) { return b != b ? b : b < a ? b : a; }
TREADLE_INLINE double treadle_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
TREADLE_INLINE int treadle_unordered(double a, double b) { return __builtin_isunordered(a, b); }
TREADLE_INLINE int treadle_differ(double a, double b) { return __builtin_islessgreater(a, b); }
#undef TREADLE_DOUBLE1
#undef TREADLE_DOUBLE2

/* Blocks that other threads run arrive at a counter: whether this one is the last, which sees what the others have stored,
 * and resets the counter. */
TREADLE_INLINE int treadle_arrive(int *counter, int blocks) {
    if (__atomic_add_fetch(counter, 1, __ATOMIC_ACQ_REL) < blocks) return 0;
    __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
    __asm__ volatile("" ::: "memory");
    return 1;
}

#endif
