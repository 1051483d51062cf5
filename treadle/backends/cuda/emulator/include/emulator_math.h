// Mathematics by the C library; intrinsics that trade accuracy on a GPU are as accurate as the rest here.
#pragma once

#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
#ifndef NAN
#define NAN __builtin_nanf("")
#endif

#define TREADLE_EMU_UNARY(NAME)                                        \
  TREADLE_EMU_INLINE float NAME##f(float x) { return __builtin_##NAME##f(x); }    \
  TREADLE_EMU_INLINE double NAME(double x) { return __builtin_##NAME(x); }        \
  TREADLE_EMU_INLINE float NAME(float x) { return __builtin_##NAME##f(x); }
#define TREADLE_EMU_BINARY(NAME)                                       \
  TREADLE_EMU_INLINE float NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }    \
  TREADLE_EMU_INLINE double NAME(double x, double y) { return __builtin_##NAME(x, y); }       \
  TREADLE_EMU_INLINE float NAME(float x, float y) { return __builtin_##NAME##f(x, y); }

// The C library declares some of these names itself; a macro gives the kernel's uses names of their own.
#define TREADLE_EMU_NAMES(M) \
  M(exp) M(exp2) M(expm1) M(log) M(log2) M(log10) M(log1p) M(sqrt) M(cbrt) M(tan) M(asin) M(acos) \
  M(atan) M(sinh) M(cosh) M(tanh) M(asinh) M(acosh) M(atanh) M(erf) M(erfc) M(fabs) M(floor) M(ceil) M(trunc)   \
  M(round) M(rint) M(nearbyint) M(tgamma) M(lgamma)
TREADLE_EMU_NAMES(TREADLE_EMU_UNARY)
// Where an angle comes from, the compiler must not know: of NaN, gcc 12 -fno-math-errno makes sin(atan(x)) 1.
#define TREADLE_EMU_OF_AN_ANGLE(NAME, TYPE, FUNCTION)                  \
  TREADLE_EMU_INLINE TYPE NAME(TYPE x) {                               \
    asm("" : "+m"(x));                                                 \
    return FUNCTION(x);                                                \
  }
TREADLE_EMU_OF_AN_ANGLE(sinf, float, __builtin_sinf)
TREADLE_EMU_OF_AN_ANGLE(cosf, float, __builtin_cosf)
TREADLE_EMU_OF_AN_ANGLE(sin, float, __builtin_sinf)
TREADLE_EMU_OF_AN_ANGLE(cos, float, __builtin_cosf)
TREADLE_EMU_OF_AN_ANGLE(sin, double, __builtin_sin)
TREADLE_EMU_OF_AN_ANGLE(cos, double, __builtin_cos)
#undef TREADLE_EMU_OF_AN_ANGLE
TREADLE_EMU_BINARY(pow)
TREADLE_EMU_BINARY(fmod)
TREADLE_EMU_BINARY(atan2)
TREADLE_EMU_BINARY(fmax)
TREADLE_EMU_BINARY(fmin)
TREADLE_EMU_BINARY(copysign)
TREADLE_EMU_BINARY(hypot)
#undef TREADLE_EMU_UNARY
#undef TREADLE_EMU_BINARY
#undef TREADLE_EMU_NAMES

TREADLE_EMU_INLINE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TREADLE_EMU_INLINE double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
TREADLE_EMU_INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TREADLE_EMU_INLINE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
TREADLE_EMU_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
TREADLE_EMU_INLINE float exp10f(float x) { return __builtin_powf(10.0f, x); }
TREADLE_EMU_INLINE int abs(int x) { return x < 0 ? -x : x; }
TREADLE_EMU_INLINE float abs(float x) { return __builtin_fabsf(x); }
TREADLE_EMU_INLINE double abs(double x) { return __builtin_fabs(x); }
TREADLE_EMU_INLINE bool isnan(float x) { return x != x; }
TREADLE_EMU_INLINE bool isnan(double x) { return x != x; }
TREADLE_EMU_INLINE bool isinf(float x) { return __builtin_isinf(x); }
TREADLE_EMU_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }

#define TREADLE_EMU_MIN_MAX(TYPE)                                             \
  TREADLE_EMU_INLINE TYPE min(TYPE a, TYPE b) { return b < a ? b : a; }       \
  TREADLE_EMU_INLINE TYPE max(TYPE a, TYPE b) { return a < b ? b : a; }
TREADLE_EMU_MIN_MAX(int)
TREADLE_EMU_MIN_MAX(unsigned)
TREADLE_EMU_MIN_MAX(long)
TREADLE_EMU_MIN_MAX(unsigned long)
TREADLE_EMU_MIN_MAX(long long)
TREADLE_EMU_MIN_MAX(unsigned long long)
#undef TREADLE_EMU_MIN_MAX
TREADLE_EMU_INLINE unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
TREADLE_EMU_INLINE unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
TREADLE_EMU_INLINE unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
TREADLE_EMU_INLINE unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
TREADLE_EMU_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
TREADLE_EMU_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
TREADLE_EMU_INLINE double min(double a, double b) { return __builtin_fmin(a, b); }
TREADLE_EMU_INLINE double max(double a, double b) { return __builtin_fmax(a, b); }

TREADLE_EMU_INLINE float __expf(float x) { return __builtin_expf(x); }
TREADLE_EMU_INLINE float __exp10f(float x) { return exp10f(x); }
TREADLE_EMU_INLINE float __logf(float x) { return __builtin_logf(x); }
TREADLE_EMU_INLINE float __log2f(float x) { return __builtin_log2f(x); }
TREADLE_EMU_INLINE float __sinf(float x) { return sinf(x); }
TREADLE_EMU_INLINE float __cosf(float x) { return cosf(x); }
TREADLE_EMU_INLINE float __powf(float x, float y) { return __builtin_powf(x, y); }
TREADLE_EMU_INLINE float __fdividef(float x, float y) { return x / y; }
TREADLE_EMU_INLINE float __frcp_rn(float x) { return 1.0f / x; }
TREADLE_EMU_INLINE float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
TREADLE_EMU_INLINE float __frsqrt_rn(float x) { return 1.0f / __builtin_sqrtf(x); }
TREADLE_EMU_INLINE float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }
TREADLE_EMU_INLINE float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TREADLE_EMU_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
TREADLE_EMU_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
TREADLE_EMU_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
TREADLE_EMU_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
TREADLE_EMU_INLINE int __ffs(int x) { return __builtin_ffs(x); }
TREADLE_EMU_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
TREADLE_EMU_INLINE int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
TREADLE_EMU_INLINE int __mul24(int a, int b) { return a * b; }
TREADLE_EMU_INLINE unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
  return r;
}

template <typename To, typename From> TREADLE_EMU_INLINE To treadle_emu_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To r;
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}
TREADLE_EMU_INLINE int __float_as_int(float x) { return treadle_emu_bits<int>(x); }
TREADLE_EMU_INLINE unsigned __float_as_uint(float x) { return treadle_emu_bits<unsigned>(x); }
TREADLE_EMU_INLINE float __int_as_float(int x) { return treadle_emu_bits<float>(x); }
TREADLE_EMU_INLINE float __uint_as_float(unsigned x) { return treadle_emu_bits<float>(x); }
TREADLE_EMU_INLINE long long __double_as_longlong(double x) { return treadle_emu_bits<long long>(x); }
TREADLE_EMU_INLINE double __longlong_as_double(long long x) { return treadle_emu_bits<double>(x); }
TREADLE_EMU_INLINE int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
TREADLE_EMU_INLINE int __float2int_rz(float x) { return (int)x; }
TREADLE_EMU_INLINE int __float2int_rd(float x) { return (int)__builtin_floorf(x); }
TREADLE_EMU_INLINE int __float2int_ru(float x) { return (int)__builtin_ceilf(x); }
TREADLE_EMU_INLINE float __int2float_rn(int x) { return (float)x; }
TREADLE_EMU_INLINE float __uint2float_rn(unsigned x) { return (float)x; }
