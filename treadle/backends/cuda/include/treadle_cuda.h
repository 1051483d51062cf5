// What every generated kernel may call. It includes no CUDA header, so that NVRTC alone compiles it.
//
// Functions that hide PTX have plain C signatures, so that the same kernel text can be compiled against other
// bodies: whoever defines TREADLE_NO_DEVICE_BODIES provides them.
#ifndef TREADLE_CUDA_H
#define TREADLE_CUDA_H

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fc00000)
#endif

// A half and a bfloat16 in memory: bits without arithmetic of their own. Sums and products run in float.
struct treadle_half {
  unsigned short bits;
};
struct treadle_bfloat16 {
  unsigned short bits;
};

// N values in registers, for example what one lane holds of a matrix. Matrices of 16-bit elements are held as
// unsigned, two elements in each.
template <typename T, int N>
struct treadle_vec {
  T v[N];
};

// ---- whole numbers and vectors in plain C++: the same wherever the text is compiled ---------------------------

template <typename T> inline T treadle_min_integer(T a, T b) { return a < b ? a : b; }
template <typename T> inline T treadle_max_integer(T a, T b) { return a > b ? a : b; }
// Quotients round towards zero (div), minus (floordiv) or plus infinity (ceildiv). A quotient or a remainder by 0 is 0,
// and the lowest number divided by -1 is itself.
template <typename T> inline T treadle_div_integer(T a, T b) {
  const bool negates = (T)-1 < (T)1 && b == (T)-1;
  const T quotient = a / (b == 0 || negates ? (T)1 : b);
  return b == 0 ? 0 : negates ? (T)(0ull - (unsigned long long)a) : quotient;
}
template <typename T> inline T treadle_rem_integer(T a, T b) {
  const bool negates = (T)-1 < (T)1 && b == (T)-1;
  return a % (b == 0 || negates ? (T)1 : b);
}
template <typename T> inline T treadle_floordiv_integer(T a, T b) {
  const T rest = treadle_rem_integer(a, b);
  return treadle_div_integer(a, b) - (rest != 0 && (rest < 0) != (b < 0));
}
template <typename T> inline T treadle_ceildiv_integer(T a, T b) {
  const T rest = treadle_rem_integer(a, b);
  return treadle_div_integer(a, b) + (rest != 0 && (rest < 0) == (b < 0));
}
// The whole part of a float; the lowest or the highest number if it lies beyond, 0 for NaN.
template <typename T, typename F> inline T treadle_to_integer(F x) {
  constexpr bool has_sign = (T)-1 < (T)1;
  constexpr int bits = 8 * (int)sizeof(T) - has_sign;
  const T highest = (T)(~0ull >> (64 - bits)), lowest = has_sign ? (T)(-highest - 1) : (T)0;
  const F end = (F)(1ull << (bits - 1)) * 2, start = has_sign ? -end : (F)0;
  const T whole = (T)(x >= start && x < end ? x : (F)0);
  return x >= end ? highest : x < start ? lowest : whole;
}

// Whether either is NaN; whether one is less than the other (false where either is NaN).
template <typename T> inline bool treadle_unordered(T a, T b) { return a != a || b != b; }
template <typename T> inline bool treadle_differ(T a, T b) { return a < b || a > b; }

// The literals INFINITY and NAN are float, whatever the vector's elements are.
template <typename V, typename T> inline V treadle_splat(T x) {
  V r;
  for (auto &lane : r.v) lane = x;
  return r;
}

// A 16-bit float in both halves of a word.
template <typename T> inline unsigned treadle_twice(T x) { return x.bits | (unsigned)x.bits << 16; }

// One of the equal parts of a vector.
template <typename V, typename T, int N> inline V treadle_part(const treadle_vec<T, N> &vector, int part) {
  constexpr int size = sizeof(V) / sizeof(T);
  V r;
  for (int i = 0; i < size; ++i) r.v[i] = vector.v[part * size + i];
  return r;
}

// The floats of which these are the bits.
template <int N> inline treadle_vec<float, N> treadle_as_float(const treadle_vec<unsigned, N> &bits) {
  union {
    treadle_vec<unsigned, N> from;
    treadle_vec<float, N> to;
  } r = {bits};
  return r.to;
}

// An operator on vectors lane by lane, and with a scalar on either side.
#define TREADLE_VECTOR_OPERATOR(OP)                                                                              \
  template <typename T, int N>                                                                                   \
  inline treadle_vec<T, N> operator OP(const treadle_vec<T, N> &a, const treadle_vec<T, N> &b) {      \
    treadle_vec<T, N> r;                                                                                         \
    for (int i = 0; i < N; ++i) r.v[i] = a.v[i] OP b.v[i];                                                       \
    return r;                                                                                                    \
  }                                                                                                              \
  template <typename T, int N>                                                                                   \
  inline treadle_vec<T, N> operator OP(T a, const treadle_vec<T, N> &b) {                             \
    return treadle_splat<treadle_vec<T, N>>(a) OP b;                                                             \
  }                                                                                                              \
  template <typename T, int N>                                                                                   \
  inline treadle_vec<T, N> operator OP(const treadle_vec<T, N> &a, T b) {                             \
    return a OP treadle_splat<treadle_vec<T, N>>(b);                                                             \
  }                                                                                                              \
  template <typename T, int N, typename U>                                                                       \
  inline treadle_vec<T, N> &operator OP##=(treadle_vec<T, N> &a, const U &b) { return a = a OP b; }
TREADLE_VECTOR_OPERATOR(+)
TREADLE_VECTOR_OPERATOR(-)
TREADLE_VECTOR_OPERATOR(*)
TREADLE_VECTOR_OPERATOR(/)
#undef TREADLE_VECTOR_OPERATOR

// The same bytes, aligned so that one instruction moves them.
template <int BYTES>
struct alignas(BYTES) treadle_bytes {
  unsigned words[BYTES / 4];
};
template <>
struct alignas(2) treadle_bytes<2> {
  unsigned short halfword;
};
// A vector at an address that is a multiple of its size: 2 to 16 bytes at once.
template <typename V> inline V treadle_load(const void *address) {
  union {
    treadle_bytes<sizeof(V)> bytes;
    V vector;
  } r = {*(const treadle_bytes<sizeof(V)> *)address};
  return r.vector;
}
template <typename V> inline void treadle_store(void *address, const V &vector) {
  union {
    V vector;
    treadle_bytes<sizeof(V)> bytes;
  } r = {vector};
  *(treadle_bytes<sizeof(V)> *)address = r.bytes;
}

// ---- between blocks ------------------------------------------------------------------------------------------

// One thread counts its block; true if it is the last of `blocks`, which resets the counter to 0. The fences make it a
// release and an acquire: writes visible to the thread before it, through a barrier also its block's, are visible to
// the last block's thread after it.
inline bool treadle_arrive(int *counter, int blocks) {
  __threadfence();
  const bool last = atomicInc((unsigned *)counter, blocks - 1) == blocks - 1;
  __threadfence();
  return last;
}

// ---- scalar mathematics, accurate versions: CUDA's own, which the emulator has by the same names ----------------

inline float treadle_exp(float x) { return expf(x); }
inline float treadle_exp2(float x) { return exp2f(x); }
inline float treadle_log(float x) { return logf(x); }
inline float treadle_log1p(float x) { return log1pf(x); }
inline float treadle_expm1(float x) { return expm1f(x); }
inline float treadle_sqrt(float x) { return sqrtf(x); }
inline float treadle_rsqrt(float x) { return rsqrtf(x); }
inline float treadle_tanh(float x) { return tanhf(x); }
inline float treadle_erf(float x) { return erff(x); }
inline float treadle_sin(float x) { return sinf(x); }
inline float treadle_cos(float x) { return cosf(x); }
inline float treadle_tan(float x) { return tanf(x); }
inline float treadle_pow(float x, float y) { return powf(x, y); }
inline float treadle_mod(float x, float y) { return fmodf(x, y); }
inline float treadle_abs(float x) { return fabsf(x); }
inline float treadle_floor(float x) { return floorf(x); }
inline float treadle_ceil(float x) { return ceilf(x); }
inline float treadle_trunc(float x) { return truncf(x); }
// Ties go to the even neighbour.
inline float treadle_roundeven(float x) { return rintf(x); }
inline float treadle_copysign(float x, float y) { return copysignf(x, y); }
inline float treadle_fma(float x, float y, float z) { return fmaf(x, y, z); }

// The same of doubles.
inline double treadle_exp_double(double x) { return exp(x); }
inline double treadle_log_double(double x) { return log(x); }
inline double treadle_log1p_double(double x) { return log1p(x); }
inline double treadle_expm1_double(double x) { return expm1(x); }
inline double treadle_sqrt_double(double x) { return sqrt(x); }
inline double treadle_rsqrt_double(double x) { return rsqrt(x); }
inline double treadle_tanh_double(double x) { return tanh(x); }
inline double treadle_erf_double(double x) { return erf(x); }
inline double treadle_sin_double(double x) { return sin(x); }
inline double treadle_cos_double(double x) { return cos(x); }
inline double treadle_tan_double(double x) { return tan(x); }
inline double treadle_pow_double(double x, double y) { return pow(x, y); }
inline double treadle_mod_double(double x, double y) { return fmod(x, y); }
inline double treadle_abs_double(double x) { return fabs(x); }
inline double treadle_floor_double(double x) { return floor(x); }
inline double treadle_ceil_double(double x) { return ceil(x); }
inline double treadle_trunc_double(double x) { return trunc(x); }
inline double treadle_roundeven_double(double x) { return rint(x); }
inline double treadle_copysign_double(double x, double y) { return copysign(x, y); }
inline double treadle_fma_double(double x, double y, double z) { return fma(x, y, z); }

// ---- floats of 8 and 4 bits in plain C++ ----------------------------------------------------------------------

// They lie in the low bits of a byte: a sign above a magnitude of MANTISSA bits below those of the exponent. HIGHEST is the
// magnitude of the largest number, INFINITE that of infinity, NOT_A_NUMBER the one that is made of NaN, and BEYOND the one
// of numbers that are too large; ONLY_NAN the byte that is NaN where -0 would be, or 256. Rounds to nearest, ties to even:
// normal numbers by adding to the bits below the last one; others are counted by the last bit of a float that is so large
// that this bit is worth the smallest number.
template <int MANTISSA, int BIAS, unsigned SIGN, unsigned HIGHEST, unsigned INFINITE, unsigned NOT_A_NUMBER,
          unsigned BEYOND, unsigned ONLY_NAN>
struct treadle_small_float {
  static inline float widen(unsigned x) {
    const unsigned magnitude = x & (SIGN - 1u);
    const float unit = __int_as_float((128 - BIAS - MANTISSA) << 23);
    const float normal = __int_as_float((int)(magnitude << (23 - MANTISSA)) + ((127 - BIAS) << 23));
    const float number = magnitude >> MANTISSA ? normal : (float)(int)magnitude * unit;
    const float size = magnitude > HIGHEST || x == ONLY_NAN ? (magnitude == INFINITE ? INFINITY : NAN) : number;
    return __int_as_float((int)((unsigned)__float_as_int(size) | (x & SIGN) * (0x80000000u / SIGN)));
  }
  static inline unsigned char round(float x) {
    const unsigned bits = (unsigned)__float_as_int(x), size = bits & 0x7fffffffu;
    const unsigned rest = size - ((127u - BIAS) << 23);
    const unsigned normal = (rest + (1u << (22 - MANTISSA)) - 1 + (rest >> (23 - MANTISSA) & 1)) >> (23 - MANTISSA);
    const int large = (151 - BIAS - MANTISSA) << 23;
    const int count = __float_as_int(__int_as_float((int)size) + __int_as_float(large)) - large;
    const unsigned rounded = size < (128u - BIAS) << 23 ? (unsigned)count : normal;
    const unsigned number = rounded > HIGHEST ? BEYOND : rounded;
    const unsigned magnitude = size > 0x7f800000u ? NOT_A_NUMBER : number;
    return (unsigned char)(ONLY_NAN < 256 && magnitude == 0 ? 0 : magnitude | (bits >> 31) * SIGN);
  }
};
inline float treadle_double_to_odd(double x);
#define TREADLE_SMALL_FLOAT(name, ...)                                                                           \
  inline float treadle_##name##_to_float(unsigned char x) { return treadle_small_float<__VA_ARGS__>::widen(x); } \
  inline unsigned char treadle_float_to_##name(float x) { return treadle_small_float<__VA_ARGS__>::round(x); }   \
  inline unsigned char treadle_double_to_##name(double x) {                                                      \
    return treadle_float_to_##name(treadle_double_to_odd(x));                                                    \
  }
TREADLE_SMALL_FLOAT(f4E2M1FN, 1, 1, 0x8u, 0x7u, 0x100u, 0x0u, 0x7u, 0x100u)
TREADLE_SMALL_FLOAT(f8E4M3FN, 3, 7, 0x80u, 0x7eu, 0x100u, 0x7fu, 0x7fu, 0x100u)
TREADLE_SMALL_FLOAT(f8E4M3FNUZ, 3, 8, 0x80u, 0x7fu, 0x100u, 0x80u, 0x80u, 0x80u)
TREADLE_SMALL_FLOAT(f8E5M2, 2, 15, 0x80u, 0x7bu, 0x7cu, 0x7eu, 0x7cu, 0x100u)
TREADLE_SMALL_FLOAT(f8E5M2FNUZ, 2, 16, 0x80u, 0x7fu, 0x100u, 0x80u, 0x80u, 0x80u)
#undef TREADLE_SMALL_FLOAT
// A power of two: the exponent of a float, of which 0 is that of a subnormal one.
inline float treadle_f8E8M0FNU_to_float(unsigned char x) {
  return x == 0xff ? NAN : __int_as_float(x == 0 ? 0x400000 : (int)x << 23);
}

#ifndef TREADLE_NO_DEVICE_BODIES

// ---- maxima and minima ---------------------------------------------------------------------------------------

// NaN if either operand is; -0 is less than +0.
inline float treadle_max(float x, float y) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
inline float treadle_min(float x, float y) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
// The other operand if one is NaN.
inline float treadle_maxnum(float x, float y) { return fmaxf(x, y); }
inline float treadle_minnum(float x, float y) { return fminf(x, y); }

// There is no instruction for these. Equal numbers have equal bits, but for zeros, whose signs are combined.
inline double treadle_max_double(double x, double y) {
  if (x != x || y != y) return x + y;
  if (x == y) return __longlong_as_double(__double_as_longlong(x) & __double_as_longlong(y));
  return x > y ? x : y;
}
inline double treadle_min_double(double x, double y) {
  if (x != x || y != y) return x + y;
  if (x == y) return __longlong_as_double(__double_as_longlong(x) | __double_as_longlong(y));
  return x < y ? x : y;
}
inline double treadle_maxnum_double(double x, double y) { return x != x ? y : y != y ? x : treadle_max_double(x, y); }
inline double treadle_minnum_double(double x, double y) { return x != x ? y : y != y ? x : treadle_min_double(x, y); }

// ---- conversions ---------------------------------------------------------------------------------------------

inline float treadle_half_to_float(treadle_half x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
// Rounds to nearest, ties to even.
inline treadle_half treadle_float_to_half(float x) {
  treadle_half r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
inline float treadle_bfloat16_to_float(treadle_bfloat16 x) {
  return __uint_as_float((unsigned)x.bits << 16);
}
// Rounds to nearest, ties to even.
inline treadle_bfloat16 treadle_float_to_bfloat16(float x) {
  treadle_bfloat16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
// To a float whose last bit says whether anything was cut off, so that rounding it again is rounding once.
// Source: Boldo and Melquiond, "When double rounding is odd", 2005.
inline float treadle_double_to_odd(double x) {
  const float cut = __double2float_rz(x);
  return (double)cut == x || x != x ? cut : __uint_as_float(__float_as_uint(cut) | 1u);
}
inline treadle_half treadle_double_to_half(double x) { return treadle_float_to_half(treadle_double_to_odd(x)); }
inline treadle_bfloat16 treadle_double_to_bfloat16(double x) {
  return treadle_float_to_bfloat16(treadle_double_to_odd(x));
}
// Rounds to the 10 bits of mantissa that the tensor cores read of a tf32 operand, ties away from 0.
inline float treadle_float_to_tf32(float x) {
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return __uint_as_float(r);
}

template <int N> inline treadle_vec<float, N> treadle_round_tf32(treadle_vec<float, N> x) {
  for (float &value : x.v) value = treadle_float_to_tf32(value);
  return x;
}

// ---- the block -----------------------------------------------------------------------------------------------

inline void treadle_barrier() { __syncthreads(); }

// ---- the warp: all 32 lanes must take part -------------------------------------------------------------------

inline float treadle_shuffle_down(float x, int lane) { return __shfl_down_sync(0xffffffffu, x, lane); }
inline float treadle_shuffle_up(float x, int lane) { return __shfl_up_sync(0xffffffffu, x, lane); }
inline float treadle_shuffle_xor(float x, int lane) { return __shfl_xor_sync(0xffffffffu, x, lane); }
inline float treadle_shuffle_idx(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
inline double treadle_shuffle_down(double x, int lane) { return __shfl_down_sync(0xffffffffu, x, lane); }
inline double treadle_shuffle_up(double x, int lane) { return __shfl_up_sync(0xffffffffu, x, lane); }
inline double treadle_shuffle_xor(double x, int lane) { return __shfl_xor_sync(0xffffffffu, x, lane); }
inline double treadle_shuffle_idx(double x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
inline int treadle_shuffle_down(int x, int lane) { return __shfl_down_sync(0xffffffffu, x, lane); }
inline int treadle_shuffle_up(int x, int lane) { return __shfl_up_sync(0xffffffffu, x, lane); }
inline int treadle_shuffle_xor(int x, int lane) { return __shfl_xor_sync(0xffffffffu, x, lane); }
inline int treadle_shuffle_idx(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

// ---- asynchronous copies from global to shared memory --------------------------------------------------------

// The address of shared memory as PTX wants it.
inline unsigned treadle_shared_address(const void *pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Where the predicate is false nothing is read, and zeros are written. Only 16 bytes may bypass the L1 cache.
inline void treadle_cp_async_4(void *shared, const void *global, bool predicate = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(treadle_shared_address(shared)), "l"(global),
               "r"(predicate ? 4 : 0)
               : "memory");
}
inline void treadle_cp_async_8(void *shared, const void *global, bool predicate = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(treadle_shared_address(shared)), "l"(global),
               "r"(predicate ? 8 : 0)
               : "memory");
}
inline void treadle_cp_async_16(void *shared, const void *global, bool predicate = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(treadle_shared_address(shared)), "l"(global),
               "r"(predicate ? 16 : 0)
               : "memory");
}
inline void treadle_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING of the newest groups are under way.
template <int PENDING>
inline void treadle_cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- matrices of 8x8 16-bit elements from shared memory ------------------------------------------------------

inline treadle_vec<unsigned, 1> treadle_ldmatrix_x1(const void *row) {
  treadle_vec<unsigned, 1> r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r.v[0])
               : "r"(treadle_shared_address(row))
               : "memory");
  return r;
}
inline treadle_vec<unsigned, 2> treadle_ldmatrix_x2(const void *row) {
  treadle_vec<unsigned, 2> r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r.v[0]), "=r"(r.v[1])
               : "r"(treadle_shared_address(row))
               : "memory");
  return r;
}
inline treadle_vec<unsigned, 4> treadle_ldmatrix_x4(const void *row) {
  treadle_vec<unsigned, 4> r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
               : "r"(treadle_shared_address(row))
               : "memory");
  return r;
}
inline treadle_vec<unsigned, 1> treadle_ldmatrix_x1_trans(const void *row) {
  treadle_vec<unsigned, 1> r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r.v[0])
               : "r"(treadle_shared_address(row))
               : "memory");
  return r;
}
inline treadle_vec<unsigned, 2> treadle_ldmatrix_x2_trans(const void *row) {
  treadle_vec<unsigned, 2> r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r.v[0]), "=r"(r.v[1])
               : "r"(treadle_shared_address(row))
               : "memory");
  return r;
}
inline treadle_vec<unsigned, 4> treadle_ldmatrix_x4_trans(const void *row) {
  treadle_vec<unsigned, 4> r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])
               : "r"(treadle_shared_address(row))
               : "memory");
  return r;
}

// ---- tensor core products a * b + c, accumulated in float ----------------------------------------------------

#define TREADLE_MMA_M16N8K16(NAME, TYPE)                                                                         \
  inline treadle_vec<float, 4> NAME(treadle_vec<unsigned, 4> a, treadle_vec<unsigned, 2> b,                      \
                                    treadle_vec<float, 4> c) {                                                   \
    treadle_vec<float, 4> d;                                                                                     \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                                  \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                           \
                 : "=f"(d.v[0]), "=f"(d.v[1]), "=f"(d.v[2]), "=f"(d.v[3])                                        \
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]),                 \
                   "f"(c.v[0]), "f"(c.v[1]), "f"(c.v[2]), "f"(c.v[3]));                                          \
    return d;                                                                                                    \
  }
TREADLE_MMA_M16N8K16(treadle_mma_m16n8k16_f16, "f16")
TREADLE_MMA_M16N8K16(treadle_mma_m16n8k16_bf16, "bf16")
#undef TREADLE_MMA_M16N8K16

// The lower 13 bits of a and b are ignored: pass them through treadle_float_to_tf32 to round instead of truncating.
inline treadle_vec<float, 4> treadle_mma_m16n8k8_tf32(treadle_vec<float, 4> a, treadle_vec<float, 2> b,
                                                      treadle_vec<float, 4> c) {
  treadle_vec<float, 4> d;
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
               : "=f"(d.v[0]), "=f"(d.v[1]), "=f"(d.v[2]), "=f"(d.v[3])
               : "r"(__float_as_uint(a.v[0])), "r"(__float_as_uint(a.v[1])), "r"(__float_as_uint(a.v[2])),
                 "r"(__float_as_uint(a.v[3])), "r"(__float_as_uint(b.v[0])), "r"(__float_as_uint(b.v[1])),
                 "f"(c.v[0]), "f"(c.v[1]), "f"(c.v[2]), "f"(c.v[3]));
  return d;
}

#endif  // TREADLE_NO_DEVICE_BODIES
#endif  // TREADLE_CUDA_H
