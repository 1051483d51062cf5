// What kernels use of CUDA's header of the same name: each operation is rounded once, to the nearest half.
#pragma once

struct __half : treadle_half {
  __half() = default;
  TREADLE_EMU_INLINE __half(treadle_half h) : treadle_half(h) {}
  TREADLE_EMU_INLINE __half(float x) : treadle_half(treadle_float_to_half(x)) {}
  TREADLE_EMU_INLINE explicit __half(double x) : treadle_half(treadle_double_to_half(x)) {}
  TREADLE_EMU_INLINE explicit __half(int x) : treadle_half(treadle_float_to_half((float)x)) {}
  TREADLE_EMU_INLINE operator float() const { return treadle_half_to_float(*this); }
};
struct __attribute__((aligned(4))) __half2 {
  __half x, y;
};
typedef __half half;
typedef __half2 half2;
template <> struct treadle_emu_type<__half> { static constexpr uint32_t kind = TREADLE_EMU_FLOAT; };

#define __float2half(X) __half((float)(X))
#define __float2half_rn(X) __half((float)(X))
#define __double2half(X) __half((double)(X))
#define __half2float(X) ((float)(__half)(X))
TREADLE_EMU_INLINE __half __int2half_rn(int x) { return __half(x); }
TREADLE_EMU_INLINE int __half2int_rz(__half x) { return (int)(float)x; }
TREADLE_EMU_INLINE unsigned short __half_as_ushort(__half x) { return x.bits; }
TREADLE_EMU_INLINE __half __ushort_as_half(unsigned short bits) { return __half(treadle_half{bits}); }

// A float holds the sum of two halves well enough to round it once more, and their product exactly; of a quotient and
// a square root it has more than twice the digits.
#define TREADLE_EMU_HALF(SIGN, NAME)                                                                               \
  TREADLE_EMU_INLINE __half operator SIGN(__half a, __half b) { return __half((float)a SIGN(float) b); }           \
  TREADLE_EMU_INLINE __half &operator SIGN##=(__half &a, __half b) { return a = a SIGN b; }                        \
  TREADLE_EMU_INLINE __half NAME(__half a, __half b) { return a SIGN b; }                                          \
  TREADLE_EMU_INLINE __half2 operator SIGN(__half2 a, __half2 b) { return {a.x SIGN b.x, a.y SIGN b.y}; }          \
  TREADLE_EMU_INLINE __half2 &operator SIGN##=(__half2 &a, __half2 b) { return a = a SIGN b; }
TREADLE_EMU_HALF(+, __hadd)
TREADLE_EMU_HALF(-, __hsub)
TREADLE_EMU_HALF(*, __hmul)
TREADLE_EMU_HALF(/, __hdiv)
#undef TREADLE_EMU_HALF
TREADLE_EMU_INLINE __half operator-(__half a) { return __half(treadle_half{(unsigned short)(a.bits ^ 0x8000)}); }
TREADLE_EMU_INLINE __half __hneg(__half a) { return -a; }
TREADLE_EMU_INLINE __half __habs(__half a) { return __half(treadle_half{(unsigned short)(a.bits & 0x7fff)}); }
TREADLE_EMU_INLINE __half2 __hadd2(__half2 a, __half2 b) { return a + b; }
TREADLE_EMU_INLINE __half2 __hsub2(__half2 a, __half2 b) { return a - b; }
TREADLE_EMU_INLINE __half2 __hmul2(__half2 a, __half2 b) { return a * b; }
// The product is exact in a double, and the sum has more than twice the digits.
TREADLE_EMU_INLINE __half __hfma(__half a, __half b, __half c) {
  return __half((double)(float)a * (double)(float)b + (double)(float)c);
}
TREADLE_EMU_INLINE __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

#define TREADLE_EMU_COMPARED(SIGN, NAME)                                                                           \
  TREADLE_EMU_INLINE bool operator SIGN(__half a, __half b) { return (float)a SIGN(float) b; }                     \
  TREADLE_EMU_INLINE bool NAME(__half a, __half b) { return a SIGN b; }
TREADLE_EMU_COMPARED(==, __heq)
TREADLE_EMU_COMPARED(!=, __hne)
TREADLE_EMU_COMPARED(<, __hlt)
TREADLE_EMU_COMPARED(<=, __hle)
TREADLE_EMU_COMPARED(>, __hgt)
TREADLE_EMU_COMPARED(>=, __hge)
#undef TREADLE_EMU_COMPARED
TREADLE_EMU_INLINE bool __hisnan(__half a) { return (a.bits & 0x7fff) > 0x7c00; }
// A number wins over NaN, and 0 over -0.
TREADLE_EMU_INLINE __half __hmax(__half a, __half b) { return __half(treadle_maxnum((float)a, (float)b)); }
TREADLE_EMU_INLINE __half __hmin(__half a, __half b) { return __half(treadle_minnum((float)a, (float)b)); }

TREADLE_EMU_INLINE __half hexp(__half x) { return __half(expf((float)x)); }
TREADLE_EMU_INLINE __half hlog(__half x) { return __half(logf((float)x)); }
TREADLE_EMU_INLINE __half hsqrt(__half x) { return __half(sqrtf((float)x)); }
TREADLE_EMU_INLINE __half hrsqrt(__half x) { return __half(rsqrtf((float)x)); }
TREADLE_EMU_INLINE __half htanh(__half x) { return __half(tanhf((float)x)); }

TREADLE_EMU_INLINE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
TREADLE_EMU_INLINE __half2 make_half2(__half x, __half y) { return {x, y}; }
TREADLE_EMU_INLINE __half2 __half2half2(__half x) { return {x, x}; }
TREADLE_EMU_INLINE __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
TREADLE_EMU_INLINE __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
TREADLE_EMU_INLINE __half2 __float22half2_rn(float2 x) { return {__half(x.x), __half(x.y)}; }
TREADLE_EMU_INLINE float2 __half22float2(__half2 x) { return make_float2(x.x, x.y); }
TREADLE_EMU_INLINE __half __low2half(__half2 x) { return x.x; }
TREADLE_EMU_INLINE __half __high2half(__half2 x) { return x.y; }
TREADLE_EMU_INLINE float __low2float(__half2 x) { return x.x; }
TREADLE_EMU_INLINE float __high2float(__half2 x) { return x.y; }
