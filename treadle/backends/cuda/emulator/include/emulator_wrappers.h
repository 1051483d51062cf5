// The second bodies of treadle_cuda.h's functions: what their PTX does, done by the emulator.
#pragma once

extern "C" {
uint32_t treadle_emu_shared_address(const void *pointer);
void treadle_emu_cp_async(void *shared, const void *global, uint32_t bytes, int32_t predicate);
void treadle_emu_cp_async_commit();
void treadle_emu_cp_async_wait(uint32_t pending);
void treadle_emu_ldmatrix(const void *row, uint32_t *result, int32_t count, int32_t transpose);
void treadle_emu_mma(int32_t kind, const uint32_t *a, const uint32_t *b, const float *c, float *d);
void treadle_emu_mma_bytes(int32_t signs, const uint32_t *a, const uint32_t *b, const int32_t *c, int32_t *d);
}

// A NaN keeps its payload, so that what was computed from unwritten memory can be recognised.
#define TREADLE_EMU_EXTREMES(T, SUFFIX)                                                                          \
  TREADLE_EMU_INLINE T treadle_max##SUFFIX(T x, T y) {                                                           \
    if (x != x || y != y) return x != x ? x : y;                                                                 \
    return x == y ? (__builtin_signbit(x) ? y : x) : x > y ? x : y;                                              \
  }                                                                                                              \
  TREADLE_EMU_INLINE T treadle_min##SUFFIX(T x, T y) {                                                           \
    if (x != x || y != y) return x != x ? x : y;                                                                 \
    return x == y ? (__builtin_signbit(x) ? x : y) : x < y ? x : y;                                              \
  }                                                                                                              \
  TREADLE_EMU_INLINE T treadle_maxnum##SUFFIX(T x, T y) {                                                        \
    return x != x ? y : y != y ? x : treadle_max##SUFFIX(x, y);                                                  \
  }                                                                                                              \
  TREADLE_EMU_INLINE T treadle_minnum##SUFFIX(T x, T y) {                                                        \
    return x != x ? y : y != y ? x : treadle_min##SUFFIX(x, y);                                                  \
  }
TREADLE_EMU_EXTREMES(float, )
TREADLE_EMU_EXTREMES(double, _double)
#undef TREADLE_EMU_EXTREMES

TREADLE_EMU_INLINE float treadle_half_to_float(treadle_half h) {
  unsigned sign = (h.bits & 0x8000u) << 16, exponent = h.bits >> 10 & 31, mantissa = h.bits & 1023u;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
  if (!mantissa) return __uint_as_float(sign);
  unsigned shift = (unsigned)__builtin_clz(mantissa) - 21;
  return __uint_as_float(sign | (113 - shift) << 23 | (mantissa << shift & 1023u) << 13);
}
// As runtime/unwritten.cpp looks for them.
inline bool treadle_emu_unwritten(unsigned bits) {
  return bits == 0xfffbfffbu || bits == 0xfffb0000u || bits == 0xffff6000u || bits == 0xfffbe000u || bits == 0xffffffffu;
}
inline treadle_half treadle_float_to_half(float x) {
  unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return {(unsigned short)(treadle_emu_unwritten(bits) ? 0xfffb : 0x7fff)};
  if (rest >= 0x47800000u) return {(unsigned short)(sign | 0x7c00u)};
  if (rest < 0x38800000u) {
    // A subnormal half counts units of 2^-24; the number is its mantissa times 2^(exponent - 150).
    unsigned shift = 126 - (rest >> 23), mantissa = (rest & 0x7fffffu) | 0x800000u;
    if (shift > 24) return {(unsigned short)sign};
    unsigned half = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
    return {(unsigned short)(sign | half)};
  }
  rest += 0xfffu + (rest >> 13 & 1);
  return {(unsigned short)(sign | (rest - 0x38000000u) >> 13)};
}
TREADLE_EMU_INLINE float treadle_bfloat16_to_float(treadle_bfloat16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
TREADLE_EMU_INLINE treadle_bfloat16 treadle_float_to_bfloat16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {(unsigned short)(treadle_emu_unwritten(bits) ? 0xfffb : 0x7fff)};
  return {(unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
}
// The last bit says whether anything was cut off.
TREADLE_EMU_INLINE float treadle_double_to_odd(double x) {
  const unsigned nearest = __float_as_uint((float)x);
  if ((double)(float)x == x || x != x) return (float)x;
  // Rounding away from zero went one too far; an infinity comes back as the largest float, which is odd.
  const unsigned cut = __builtin_fabs((double)(float)x) > __builtin_fabs(x) ? nearest - 1 : nearest;
  return __uint_as_float(cut | 1u);
}
TREADLE_EMU_INLINE treadle_half treadle_double_to_half(double x) {
  return treadle_float_to_half(treadle_double_to_odd(x));
}
TREADLE_EMU_INLINE treadle_bfloat16 treadle_double_to_bfloat16(double x) {
  return treadle_float_to_bfloat16(treadle_double_to_odd(x));
}
TREADLE_EMU_INLINE float treadle_exp2_approx(float x) {
  const float value = exp2f(x);
  return value < 0x1p-126f ? 0.0f : value;
}
// Ties go away from zero, as cvt.rna does.
TREADLE_EMU_INLINE float treadle_float_to_tf32(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return __uint_as_float((bits + 0x1000u) & 0xffffe000u);
}
template <int N> inline treadle_vec<float, N> treadle_round_tf32(treadle_vec<float, N> x) {
  for (float &value : x.v) value = treadle_float_to_tf32(value);
  return x;
}

#define treadle_barrier() treadle_emu_barrier(__LINE__)

template <typename T> TREADLE_EMU_INLINE T treadle_shuffle_idx(T x, int lane) { return __shfl_sync(~0u, x, lane); }
template <typename T> TREADLE_EMU_INLINE T treadle_shuffle_up(T x, int lane) { return __shfl_up_sync(~0u, x, lane); }
template <typename T> TREADLE_EMU_INLINE T treadle_shuffle_down(T x, int lane) { return __shfl_down_sync(~0u, x, lane); }
template <typename T> TREADLE_EMU_INLINE T treadle_shuffle_xor(T x, int lane) { return __shfl_xor_sync(~0u, x, lane); }

// The place in a window that holds all of the block's shared variables.
TREADLE_EMU_INLINE unsigned treadle_shared_address(const void *pointer) { return treadle_emu_shared_address(pointer); }

TREADLE_EMU_INLINE void treadle_cp_async_4(void *shared, const void *global, bool predicate = true) {
  treadle_emu_cp_async(shared, global, 4, predicate);
}
TREADLE_EMU_INLINE void treadle_cp_async_8(void *shared, const void *global, bool predicate = true) {
  treadle_emu_cp_async(shared, global, 8, predicate);
}
TREADLE_EMU_INLINE void treadle_cp_async_16(void *shared, const void *global, bool predicate = true) {
  treadle_emu_cp_async(shared, global, 16, predicate);
}
TREADLE_EMU_INLINE void treadle_cp_async_commit() { treadle_emu_cp_async_commit(); }
template <int PENDING> TREADLE_EMU_INLINE void treadle_cp_async_wait() { treadle_emu_cp_async_wait(PENDING); }

#define TREADLE_EMU_LDMATRIX(COUNT)                                                            \
  TREADLE_EMU_INLINE treadle_vec<unsigned, COUNT> treadle_ldmatrix_x##COUNT(const void *row) { \
    treadle_vec<unsigned, COUNT> r;                                                            \
    treadle_emu_ldmatrix(row, r.v, COUNT, 0);                                                  \
    return r;                                                                                  \
  }                                                                                            \
  TREADLE_EMU_INLINE treadle_vec<unsigned, COUNT> treadle_ldmatrix_x##COUNT##_trans(const void *row) { \
    treadle_vec<unsigned, COUNT> r;                                                            \
    treadle_emu_ldmatrix(row, r.v, COUNT, 1);                                                  \
    return r;                                                                                  \
  }
TREADLE_EMU_LDMATRIX(1)
TREADLE_EMU_LDMATRIX(2)
TREADLE_EMU_LDMATRIX(4)
#undef TREADLE_EMU_LDMATRIX

TREADLE_EMU_INLINE treadle_vec<float, 4> treadle_mma_m16n8k16_f16(treadle_vec<unsigned, 4> a,
                                                                  treadle_vec<unsigned, 2> b,
                                                                  treadle_vec<float, 4> c) {
  treadle_vec<float, 4> d;
  treadle_emu_mma(0, a.v, b.v, c.v, d.v);
  return d;
}
TREADLE_EMU_INLINE treadle_vec<float, 4> treadle_mma_m16n8k16_bf16(treadle_vec<unsigned, 4> a,
                                                                   treadle_vec<unsigned, 2> b,
                                                                   treadle_vec<float, 4> c) {
  treadle_vec<float, 4> d;
  treadle_emu_mma(1, a.v, b.v, c.v, d.v);
  return d;
}
TREADLE_EMU_INLINE treadle_vec<float, 4> treadle_mma_m16n8k8_tf32(treadle_vec<float, 4> a, treadle_vec<float, 2> b,
                                                                  treadle_vec<float, 4> c) {
  treadle_vec<float, 4> d;
  treadle_emu_mma(2, (const uint32_t *)a.v, (const uint32_t *)b.v, c.v, d.v);
  return d;
}
// SIGNS: 1 if A's bytes are signed, and 2 if B's are.
#define TREADLE_EMU_MMA_BYTES(A, B, SIGNS)                                                                          \
  TREADLE_EMU_INLINE treadle_vec<int, 4> treadle_mma_m16n8k32_##A##_##B(                                            \
      treadle_vec<unsigned, 4> a, treadle_vec<unsigned, 2> b, treadle_vec<int, 4> c) {                              \
    treadle_vec<int, 4> d;                                                                                          \
    treadle_emu_mma_bytes(SIGNS, a.v, b.v, c.v, d.v);                                                               \
    return d;                                                                                                       \
  }
TREADLE_EMU_MMA_BYTES(u8, u8, 0)
TREADLE_EMU_MMA_BYTES(s8, u8, 1)
TREADLE_EMU_MMA_BYTES(u8, s8, 2)
TREADLE_EMU_MMA_BYTES(s8, s8, 3)
#undef TREADLE_EMU_MMA_BYTES
