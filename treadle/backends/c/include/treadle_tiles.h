/* Products of tiles on a core's matrix unit (AMX), on vectors that add dot products of 4 bytes of a row (AVX512-VNNI,
 * AVX512-BF16), and the same products in plain C for processors without either.
 *
 * A kernel calls treadle_tiles_begin() first and treadle_tiles_end() last. A product is
 *     acc[rows][cols] = sum over k < depth of a[row][k] * b[k][col],
 * rows being 1, 2, 4, 8, 16, 24 or 32, and cols 16 or 32. Rows of `a` lie `stride` bytes apart, and are read in steps
 * of 64 bytes: step s begins taps[s % count] + s / count * apart bytes behind the row's first. `b` has 4 bytes of each
 * column side by side, two bfloat16 or four bytes along k: b[depth / 2][cols][2] or b[depth / 4][cols][4]. The depth
 * fills whole tiles: it is a multiple of 64 bytes times `count`.
 *
 * Products of bytes are the same on all of them. Sums of bfloat16 are those of the plain body on AMX, except that AMX
 * reads subnormal bfloat16 as zeros and gives zeros for subnormal sums. Vectors do so, too, and add the two products of
 * 4 bytes to a sum one after another, rounding each time.
 * Sources: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3 (TDPBF16PS, TDPBSSD);
 * "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2 (VDPBF16PS, VPDPBUSD).
 */
#ifndef TREADLE_TILES_H
#define TREADLE_TILES_H

#include "treadle.h"

/* A step of row m of `a`. */
#define TREADLE_STEP(type, step) ((type)(a + m * stride + taps[(step) % count] + (step) / count * apart))

/* Even and odd terms of 64 bytes of a row have sums of their own, which are added to the tile's. */
TREADLE_INLINE void treadle_plain_bf16(long rows, long cols, long depth, const char *a, long stride, const int *taps,
                                       long count, long apart, const char *b, float *acc) {
    const treadle_bfloat16 *right = (const treadle_bfloat16 *)b;
    for (long m = 0; m < rows; m++) {
        for (long n = 0; n < cols; n++) {
            float sum = 0;
            for (long k = 0; k < depth; k += 32) {
                const treadle_bfloat16 *left = TREADLE_STEP(const treadle_bfloat16 *, k / 32);
                float part[2] = {0, 0};
                for (long i = 0; i < 32; i++)
                    part[i & 1] = __builtin_fmaf(treadle_bfloat16_to_float(left[i]),
                                                 treadle_bfloat16_to_float(right[((k + i) / 2 * cols + n) * 2 + (i & 1)]),
                                                 part[i & 1]);
                sum += part[0] + part[1];
            }
            acc[m * cols + n] = sum;
        }
    }
}

/* Sums wrap, as those of the unit do. */
#define TREADLE_PLAIN_INT8(name, left_type, right_type)                                                                \
    TREADLE_INLINE void treadle_plain_##name(long rows, long cols, long depth, const char *a, long stride,             \
                                             const int *taps, long count, long apart, const char *b, int *acc) {       \
        const right_type *right = (const right_type *)b;                                                               \
        for (long m = 0; m < rows; m++) {                                                                              \
            for (long n = 0; n < cols; n++) acc[m * cols + n] = 0;                                                     \
            for (long k = 0; k < depth; k += 4) {                                                                      \
                const left_type *left = TREADLE_STEP(const left_type *, k / 64) + k % 64;                              \
                for (long n = 0; n < cols; n++) {                                                                      \
                    int sum = 0;                                                                                       \
                    for (long i = 0; i < 4; i++) sum += left[i] * right[(k * cols) + n * 4 + i];                       \
                    acc[m * cols + n] += sum;                                                                          \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
TREADLE_PLAIN_INT8(i8i8, signed char, signed char)
TREADLE_PLAIN_INT8(i8ui8, signed char, unsigned char)
TREADLE_PLAIN_INT8(ui8i8, unsigned char, signed char)
TREADLE_PLAIN_INT8(ui8ui8, unsigned char, unsigned char)
#undef TREADLE_PLAIN_INT8
#undef TREADLE_STEP

#if defined(__x86_64__) && defined(__linux__) && !defined(TREADLE_PLAIN_TILES)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As assembly, which needs no compiler that is told of the unit, and says that memory is read and written. */
#define TREADLE_TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
#define TREADLE_TILE_LOAD(tile, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(stride) : "memory")
#define TREADLE_TILE_STORE(tile, to, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(stride) : "memory")
#define TREADLE_TILE_PRODUCT(instruction, sums, left, right) \
    __asm__ volatile(instruction " %%tmm" #right ", %%tmm" #left ", %%tmm" #sums ::: "memory")

/* What a processor multiplies by: AMX, vectors of bytes (AVX512-VNNI), vectors of bfloat16 (AVX512-BF16). */
enum { TREADLE_AMX = 1, TREADLE_VNNI = 2, TREADLE_BF16 = 4 };

/* Those that this thread has begun to use. */
static _Thread_local int treadle_tiles_on;

/* Those that the processor has, and the system saves the registers of: Linux lets a process use AMX's (arch_prctl
 * ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA) from the first question on. Asking twice does no harm: threads may race
 * for it. With TREADLE_NO_AMX vectors are used where there is AMX, too. */
static __attribute__((unused)) int treadle_tiles_found(void) {
    static int found = -1;
    int known = __atomic_load_n(&found, __ATOMIC_RELAXED);
    if (known >= 0) return known;
    unsigned eax, features, more, edx, saved = 0;
    known = 0;
    if (__get_cpuid_count(1, 0, &eax, &features, &more, &edx) && more & 1u << 27) /* OSXSAVE */
        __asm__("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
    if (__get_cpuid_count(7, 0, &eax, &features, &more, &edx)) {
        const unsigned amx = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
#ifndef TREADLE_NO_AMX
        if ((edx & amx) == amx && syscall(SYS_arch_prctl, 0x1023, 18) == 0) known |= TREADLE_AMX;
#else
        (void)amx;
#endif
        const int vectors = (saved & 0xe6) == 0xe6 && features & 1u << 16; /* zmm0 to zmm31, AVX512F */
        if (vectors && more & 1u << 11) known |= TREADLE_VNNI;
        if (vectors && eax >= 1 && __get_cpuid_count(7, 1, &eax, &features, &more, &edx) && eax & 1u << 5)
            known |= TREADLE_BF16;
    }
    __atomic_store_n(&found, known, __ATOMIC_RELAXED);
    return known;
}

/* All eight tiles have 16 rows of 64 bytes. */
TREADLE_INLINE void treadle_tiles_begin(void) {
    static const struct {
        unsigned char palette, start, reserved[14];
        unsigned short bytes[16];
        unsigned char rows[16];
    } config __attribute__((aligned(64))) = {
        1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    treadle_tiles_on = treadle_tiles_found();
    if (treadle_tiles_on & TREADLE_AMX) __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
/* What products run on between the two. */
TREADLE_INLINE int treadle_tiles_unit(void) { return treadle_tiles_on; }
TREADLE_INLINE void treadle_tiles_end(void) {
    if (treadle_tiles_on & TREADLE_AMX) __asm__ volatile("tilerelease");
}

/* Of 16 or 32 rows. Tiles 0 to 3 are sums, 4 and 5 rows of `a`, 6 and 7 columns of `b`. */
#define TREADLE_AMX_PRODUCT(name, instruction, bytes, sum)                                                             \
    static __attribute__((unused, noinline)) void treadle_amx_##name(                                                  \
        long rows, long cols, long depth, const char *a, long stride, const int *taps, long count, long apart,         \
        const char *b, sum *acc, const char *next, long lines) {                                                       \
        const long width = 4 * cols;                                                                                   \
        TREADLE_TILE_ZERO(0);                                                                                          \
        TREADLE_TILE_ZERO(1);                                                                                          \
        TREADLE_TILE_ZERO(2);                                                                                          \
        TREADLE_TILE_ZERO(3);                                                                                          \
        for (long k = 0; k < depth * bytes; k += 64 * count, a += apart)                                               \
            for (long tap = 0; tap < count; tap++, b += 16 * width) {                                                  \
                const char *upper = a + taps[tap];                                                                     \
                TREADLE_TILE_LOAD(4, upper, stride);                                                                   \
                TREADLE_TILE_LOAD(6, b, width);                                                                        \
                TREADLE_TILE_PRODUCT(instruction, 0, 4, 6);                                                            \
                if (cols > 16) {                                                                                       \
                    TREADLE_TILE_LOAD(7, b + 64, width);                                                               \
                    TREADLE_TILE_PRODUCT(instruction, 1, 4, 7);                                                        \
                }                                                                                                      \
                if (rows > 16) {                                                                                       \
                    TREADLE_TILE_LOAD(5, upper + 16 * stride, stride);                                                 \
                    TREADLE_TILE_PRODUCT(instruction, 2, 5, 6);                                                        \
                    if (cols > 16) TREADLE_TILE_PRODUCT(instruction, 3, 5, 7);                                         \
                }                                                                                                      \
                for (long l = 0; l < lines; l++, next += 64) __builtin_prefetch(next, 0, 2);                           \
            }                                                                                                          \
        TREADLE_TILE_STORE(0, acc, width);                                                                             \
        if (cols > 16) TREADLE_TILE_STORE(1, acc + 16, width);                                                         \
        if (rows > 16) TREADLE_TILE_STORE(2, acc + 16 * cols, width);                                                  \
        if (rows > 16 && cols > 16) TREADLE_TILE_STORE(3, acc + 16 * cols + 16, width);                                \
    }
TREADLE_AMX_PRODUCT(bf16, "tdpbf16ps", 2, float)
TREADLE_AMX_PRODUCT(i8i8, "tdpbssd", 1, int)
TREADLE_AMX_PRODUCT(i8ui8, "tdpbsud", 1, int)
TREADLE_AMX_PRODUCT(ui8i8, "tdpbusd", 1, int)
TREADLE_AMX_PRODUCT(ui8ui8, "tdpbuud", 1, int)
#undef TREADLE_AMX_PRODUCT
/* Vectors of 16 sums, 8 rows by 32 columns, to which an instruction adds two bfloat16 of a row times those of each
 * column, or four bytes: unsigned ones of its first operand, signed ones of its second. Where both types are the same,
 * a row's bytes get the other one by a flip of their highest bits, which adds 128 to numbers that were signed, and -128
 * to the others. The flipped bits by themselves are that number in either type, so that they are a ninth row, whose
 * sums are taken off the others in the end. Of 16 columns, each product is computed twice. */
typedef int treadle_sums __attribute__((vector_size(64)));
typedef int treadle_sums_anywhere __attribute__((vector_size(64), aligned(4), may_alias));

#define TREADLE_DOT(instruction, first, second, row)                                      \
    {                                                                                     \
        treadle_sums b = left;                                                            \
        __asm__(instruction " %2, %1, %0" : "+v"(lefts[row]) : "v"(first), "v"(second));  \
        b = right;                                                                        \
        __asm__(instruction " %2, %1, %0" : "+v"(rights[row]) : "v"(first), "v"(second)); \
    }
#define TREADLE_DOT_ROW(instruction, first, second, flips, row, address)                                             \
    {                                                                                                                \
        treadle_sums a;                                                                                              \
        __asm__ volatile("vpbroadcastd " address ", %0" : "=v"(a) : "r"(from), "r"(stride), "r"(thrice) : "memory"); \
        if (flips) a ^= flip;                                                                                        \
        TREADLE_DOT(instruction, first, second, row)                                                                 \
    }
#define TREADLE_DOT_FOUR_ROWS(instruction, first, second, flips, row, at)       \
    TREADLE_DOT_ROW(instruction, first, second, flips, row, at "(%1)")          \
    TREADLE_DOT_ROW(instruction, first, second, flips, row + 1, at "(%1,%2)")   \
    TREADLE_DOT_ROW(instruction, first, second, flips, row + 2, at "(%1,%2,2)") \
    TREADLE_DOT_ROW(instruction, first, second, flips, row + 3, at "(%1,%3)")
#define TREADLE_DOT_ROWS_1(instruction, first, second, flips, at) \
    TREADLE_DOT_ROW(instruction, first, second, flips, 0, at "(%1)")
#define TREADLE_DOT_ROWS_2(instruction, first, second, flips, at) \
    TREADLE_DOT_ROWS_1(instruction, first, second, flips, at)     \
    TREADLE_DOT_ROW(instruction, first, second, flips, 1, at "(%1,%2)")
#define TREADLE_DOT_ROWS_4(instruction, first, second, flips, at) \
    TREADLE_DOT_FOUR_ROWS(instruction, first, second, flips, 0, at)
#define TREADLE_DOT_ROWS_8(instruction, first, second, flips, at)       \
    TREADLE_DOT_FOUR_ROWS(instruction, first, second, flips, 0, at)     \
    {                                                                   \
        const char *lower = from + 4 * stride, *from = lower;           \
        TREADLE_DOT_FOUR_ROWS(instruction, first, second, flips, 4, at) \
    }
/* 4 bytes of each row, `at` bytes behind those at `from`, times the next 4 of each column. What is to be fetched is
 * asked for between loads, or, of eight rows, before: for more in a loop they have too few registers. */
#define TREADLE_DOT_STEP(instruction, first, second, flips, rows, at)                                 \
    {                                                                                                 \
        if (rows < 8)                                                                                 \
            for (wanted += lines; wanted >= 16; wanted -= 16, next += 64)                             \
                __builtin_prefetch(next, 0, 2);                                                       \
        const treadle_sums left = *(const treadle_sums_anywhere *)panel;                              \
        const treadle_sums right = *(const treadle_sums_anywhere *)(panel + half);                    \
        panel += width;                                                                               \
        if (flips) {                                                                                  \
            const treadle_sums a = flip;                                                              \
            TREADLE_DOT(instruction, first, second, rows)                                             \
        }                                                                                             \
        TREADLE_DOT_ROWS_##rows(instruction, first, second, flips, at)                                \
    }
#define TREADLE_DOT_SOME_ROWS(name, instruction, first, second, flips, rows)                                      \
    static __attribute__((unused, noinline, target("avx512f"))) void treadle_dot_##name##_##rows(                 \
        long cols, long steps, const char *begin, long stride, const int *taps, long count, long apart,           \
        const char *panel, void *acc, const char *next, long lines) {                                             \
        const long width = 4 * cols, half = cols > 16 ? 64 : 0, thrice = 3 * stride;                              \
        const treadle_sums flip = (treadle_sums){0} + (int)0x80808080;                                            \
        treadle_sums lefts[rows + 1] = {{0}}, rights[rows + 1] = {{0}};                                           \
        long wanted = 0;                                                                                          \
        for (long step = 0; step < steps; step += count, begin += apart)                                          \
            for (long tap = 0; tap < count; tap++) {                                                              \
                const char *from = begin + taps[tap];                                                             \
                if (rows == 8)                                                                                    \
                    for (long l = 0; l < lines; l++, next += 64) __builtin_prefetch(next, 0, 2);                  \
                for (long k = 0; k < 64; k += 16, from += 16) {                                                   \
                    TREADLE_DOT_STEP(instruction, first, second, flips, rows, "")                                 \
                    TREADLE_DOT_STEP(instruction, first, second, flips, rows, "4")                                \
                    TREADLE_DOT_STEP(instruction, first, second, flips, rows, "8")                                \
                    TREADLE_DOT_STEP(instruction, first, second, flips, rows, "12")                               \
                }                                                                                                 \
            }                                                                                                     \
        char *sums = (char *)acc;                                                                                 \
        TREADLE_UNROLL(8)                                                                                         \
        for (long row = 0; row < rows; row++, sums += width) {                                                    \
            *(treadle_sums_anywhere *)sums = flips ? lefts[row] - lefts[rows] : lefts[row];                       \
            if (half) *(treadle_sums_anywhere *)(sums + half) = flips ? rights[row] - rights[rows] : rights[row]; \
        }                                                                                                         \
    }
/* Of 1, 2 or 4 rows, or eight after another; the first ones fetch. */
#define TREADLE_DOT_PRODUCT(name, instruction, first, second, flips)                                                  \
    TREADLE_DOT_SOME_ROWS(name, instruction, first, second, flips, 1)                                                 \
    TREADLE_DOT_SOME_ROWS(name, instruction, first, second, flips, 2)                                                 \
    TREADLE_DOT_SOME_ROWS(name, instruction, first, second, flips, 4)                                                 \
    TREADLE_DOT_SOME_ROWS(name, instruction, first, second, flips, 8)                                                 \
    TREADLE_INLINE void treadle_dot_##name(long rows, long cols, long steps, const char *a, long stride,              \
                                           const int *taps, long count, long apart, const char *b, void *acc,         \
                                           const char *next, long lines) {                                            \
        switch (rows) {                                                                                               \
        case 1: treadle_dot_##name##_1(cols, steps, a, stride, taps, count, apart, b, acc, next, lines); break;       \
        case 2: treadle_dot_##name##_2(cols, steps, a, stride, taps, count, apart, b, acc, next, lines); break;       \
        case 4: treadle_dot_##name##_4(cols, steps, a, stride, taps, count, apart, b, acc, next, lines); break;       \
        default:                                                                                                      \
            for (long m = 0; m < rows; m += 8, lines = 0)                                                             \
                treadle_dot_##name##_8(cols, steps, a + m * stride, stride, taps, count, apart, b,                    \
                                       (char *)acc + m * 4 * cols, next, lines);                                      \
        }                                                                                                             \
    }
TREADLE_DOT_PRODUCT(bf16, "vdpbf16ps", b, a, 0)
TREADLE_DOT_PRODUCT(i8i8, "vpdpbusd", a, b, 1)
TREADLE_DOT_PRODUCT(i8ui8, "vpdpbusd", b, a, 0)
TREADLE_DOT_PRODUCT(ui8i8, "vpdpbusd", a, b, 0)
TREADLE_DOT_PRODUCT(ui8ui8, "vpdpbusd", b, a, 1)
#undef TREADLE_DOT_PRODUCT
#undef TREADLE_DOT_SOME_ROWS
#undef TREADLE_DOT_STEP
#undef TREADLE_DOT_ROWS_8
#undef TREADLE_DOT_ROWS_4
#undef TREADLE_DOT_ROWS_2
#undef TREADLE_DOT_ROWS_1
#undef TREADLE_DOT_FOUR_ROWS
#undef TREADLE_DOT_ROW
#undef TREADLE_DOT

#define TREADLE_TILES_BODY(name, vectors, bytes)                                                                \
    if (treadle_tiles_on & TREADLE_AMX && rows % 16 == 0)                                                       \
        treadle_amx_##name(rows, cols, depth, a, stride, taps, count, apart, b, acc, next, lines);              \
    else if (treadle_tiles_on & vectors)                                                                        \
        treadle_dot_##name(rows, cols, depth * bytes / 64, a, stride, taps, count, apart, b, acc, next, lines); \
    else                                                                                                        \
        treadle_plain_##name(rows, cols, depth, a, stride, taps, count, apart, b, acc);
#else
TREADLE_INLINE void treadle_tiles_begin(void) {}
TREADLE_INLINE void treadle_tiles_end(void) {}
TREADLE_INLINE int treadle_tiles_unit(void) { return 0; }
#define TREADLE_TILES_BODY(name, vectors, bytes) \
    (void)next, (void)lines;                     \
    treadle_plain_##name(rows, cols, depth, a, stride, taps, count, apart, b, acc);
#endif

/* The product; with each 64 bytes of a row, `lines` cache lines from `next` on are fetched, which may be no memory. */
#define TREADLE_TILES(name, sum, vectors, bytes)                                                                   \
    TREADLE_INLINE void treadle_tiles_##name(long rows, long cols, long depth, const void *left, long stride,      \
                                             const int *taps, long count, long apart, const void *right, sum *acc, \
                                             const void *ahead, long lines) {                                      \
        const char *a = (const char *)left, *b = (const char *)right, *next = (const char *)ahead;                 \
        TREADLE_TILES_BODY(name, vectors, bytes)                                                                   \
    }
TREADLE_TILES(bf16, float, TREADLE_BF16, 2)
TREADLE_TILES(i8i8, int, TREADLE_VNNI, 1)
TREADLE_TILES(i8ui8, int, TREADLE_VNNI, 1)
TREADLE_TILES(ui8i8, int, TREADLE_VNNI, 1)
TREADLE_TILES(ui8ui8, int, TREADLE_VNNI, 1)
#undef TREADLE_TILES

#endif
