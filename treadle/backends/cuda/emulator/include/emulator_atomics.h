// Atomic functions on numbers of 4 and 8 bytes.
#pragma once

extern "C" {
int32_t treadle_emu_atomic_i32(int32_t *address, int32_t operation, int32_t value);
uint32_t treadle_emu_atomic_u32(uint32_t *address, int32_t operation, uint32_t value);
int64_t treadle_emu_atomic_i64(int64_t *address, int32_t operation, int64_t value);
uint64_t treadle_emu_atomic_u64(uint64_t *address, int32_t operation, uint64_t value);
float treadle_emu_atomic_f32(float *address, int32_t operation, float value);
double treadle_emu_atomic_f64(double *address, int32_t operation, double value);
uint32_t treadle_emu_cas_32(uint32_t *address, uint32_t expected, uint32_t value);
uint64_t treadle_emu_cas_64(uint64_t *address, uint64_t expected, uint64_t value);
}

TREADLE_EMU_INLINE int treadle_emu_atomic(int *a, int op, int v) { return treadle_emu_atomic_i32(a, op, v); }
TREADLE_EMU_INLINE unsigned treadle_emu_atomic(unsigned *a, int op, unsigned v) {
  return treadle_emu_atomic_u32(a, op, v);
}
TREADLE_EMU_INLINE long long treadle_emu_atomic(long long *a, int op, long long v) {
  return treadle_emu_atomic_i64((int64_t *)a, op, v);
}
TREADLE_EMU_INLINE unsigned long long treadle_emu_atomic(unsigned long long *a, int op, unsigned long long v) {
  return treadle_emu_atomic_u64((uint64_t *)a, op, v);
}
TREADLE_EMU_INLINE float treadle_emu_atomic(float *a, int op, float v) { return treadle_emu_atomic_f32(a, op, v); }
TREADLE_EMU_INLINE double treadle_emu_atomic(double *a, int op, double v) { return treadle_emu_atomic_f64(a, op, v); }

// The second operand takes the first one's type, as in CUDA, where literals convert.
template <typename T> struct treadle_emu_same {
  using type = T;
};
#define TREADLE_EMU_ATOMIC(NAME, OPERATION)                                                          \
  template <typename T> TREADLE_EMU_INLINE T NAME(T *address, typename treadle_emu_same<T>::type value) { \
    return treadle_emu_atomic(address, OPERATION, value);                                            \
  }
TREADLE_EMU_ATOMIC(atomicAdd, 0)
TREADLE_EMU_ATOMIC(atomicMin, 1)
TREADLE_EMU_ATOMIC(atomicMax, 2)
TREADLE_EMU_ATOMIC(atomicAnd, 3)
TREADLE_EMU_ATOMIC(atomicOr, 4)
TREADLE_EMU_ATOMIC(atomicXor, 5)
TREADLE_EMU_ATOMIC(atomicExch, 6)
TREADLE_EMU_ATOMIC(atomicInc, 7)
TREADLE_EMU_ATOMIC(atomicDec, 8)
#undef TREADLE_EMU_ATOMIC
template <typename T> TREADLE_EMU_INLINE T atomicSub(T *address, typename treadle_emu_same<T>::type value) {
  return treadle_emu_atomic(address, 0, (T)-value);
}
template <typename T>
TREADLE_EMU_INLINE T atomicCAS(T *address, typename treadle_emu_same<T>::type expected,
                               typename treadle_emu_same<T>::type value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomicCAS swaps 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) {
    return treadle_emu_bits<T>(treadle_emu_cas_32((uint32_t *)address, treadle_emu_bits<uint32_t>(expected),
                                                  treadle_emu_bits<uint32_t>(value)));
  } else {
    return treadle_emu_bits<T>(treadle_emu_cas_64((uint64_t *)address, treadle_emu_bits<uint64_t>(expected),
                                                  treadle_emu_bits<uint64_t>(value)));
  }
}
