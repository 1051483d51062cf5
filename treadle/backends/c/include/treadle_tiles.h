/* Products of tiles on a core's matrix unit (AMX), and the same products in plain C for processors without one.
 *
 * A kernel calls treadle_tiles_begin() first and treadle_tiles_end() last. A product is
 *     acc[rows][cols] = sum over k < depth of a[row][k] * b[k][col],
 * rows and cols being 16 or 32. Rows of `a` lie `stride` bytes apart, and are read in steps of 64 bytes: step s begins
 * taps[s % count] + s / count * apart bytes behind the row's first. `b` has 4 bytes of each column side by side, two
 * bfloat16 or four bytes along k: b[depth / 2][cols][2] or b[depth / 4][cols][4]. The depth fills whole tiles: it is a
 * multiple of 64 bytes times `count`.
 *
 * Both bodies give the same values, except that the unit reads subnormal bfloat16 as zeros and gives zeros for subnormal
 * sums. Source: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3 (TDPBF16PS, TDPBSSD).
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

/* Whether this thread's tiles are configured. */
static _Thread_local int treadle_tiles_on;

/* Whether the processor has the unit, and Linux lets this process use its registers (arch_prctl ARCH_REQ_XCOMP_PERM of
 * XFEATURE_XTILEDATA), which it does from the first question on. Asking twice does no harm: threads may race for it. */
static __attribute__((unused)) int treadle_tiles_allowed(void) {
    static int allowed = -1;
    int known = __atomic_load_n(&allowed, __ATOMIC_RELAXED);
    if (known >= 0) return known;
    const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    unsigned eax, ebx, ecx, edx;
    known = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & needed) == needed;
    known = known && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    __atomic_store_n(&allowed, known, __ATOMIC_RELAXED);
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
    treadle_tiles_on = treadle_tiles_allowed();
    if (treadle_tiles_on) __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
/* Whether products run on the unit between the two. */
TREADLE_INLINE int treadle_tiles_unit(void) { return treadle_tiles_on; }
TREADLE_INLINE void treadle_tiles_end(void) {
    if (treadle_tiles_on) __asm__ volatile("tilerelease");
}

/* Tiles 0 to 3 are sums, 4 and 5 rows of `a`, 6 and 7 columns of `b`. */
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
#define TREADLE_TILES_BODY(name)                                                                     \
    if (treadle_tiles_on)                                                                            \
        treadle_amx_##name(rows, cols, depth, a, stride, taps, count, apart, b, acc, next, lines);   \
    else                                                                                             \
        treadle_plain_##name(rows, cols, depth, a, stride, taps, count, apart, b, acc);
#else
TREADLE_INLINE void treadle_tiles_begin(void) {}
TREADLE_INLINE void treadle_tiles_end(void) {}
TREADLE_INLINE int treadle_tiles_unit(void) { return 0; }
#define TREADLE_TILES_BODY(name)                                                           \
    (void)next, (void)lines;                                                               \
    treadle_plain_##name(rows, cols, depth, a, stride, taps, count, apart, b, acc);
#endif

/* The product; with each 64 bytes of a row, `lines` cache lines from `next` on are asked for, which may be no memory. */
#define TREADLE_TILES(name, sum)                                                                                       \
    TREADLE_INLINE void treadle_tiles_##name(long rows, long cols, long depth, const void *left, long stride,          \
                                             const int *taps, long count, long apart, const void *right, sum *acc,     \
                                             const void *ahead, long lines) {                                          \
        const char *a = (const char *)left, *b = (const char *)right, *next = (const char *)ahead;                     \
        TREADLE_TILES_BODY(name)                                                                                       \
    }
TREADLE_TILES(bf16, float)
TREADLE_TILES(i8i8, int)
TREADLE_TILES(i8ui8, int)
TREADLE_TILES(ui8i8, int)
TREADLE_TILES(ui8ui8, int)
#undef TREADLE_TILES

#endif
