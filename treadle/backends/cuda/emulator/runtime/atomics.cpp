// Atomic operations on global and shared memory: whole whatever thread or core runs them.
#include <string.h>

#include "state.h"

using namespace emu;

namespace {

inline void check(void *address, uint32_t bytes, uint64_t pc) {
  if (observed(*worker)) observe(address, bytes, ATOMIC, pc);
  poll(pc);
}

enum Operation : int32_t { ADD, MIN, MAX, AND, OR, XOR, EXCHANGE, INCREMENT, DECREMENT };

template <typename T> T combine_common(int32_t operation, T old, T value) {
  switch (operation) {
    case ADD: return (T)(old + value);
    case MIN: return value < old ? value : old;
    case MAX: return old < value ? value : old;
    default: return value;
  }
}
template <typename T> T combine(int32_t operation, T old, T value) {
  switch (operation) {
    case AND: return old & value;
    case OR: return old | value;
    case XOR: return old ^ value;
    case INCREMENT: return old >= value ? 0 : old + 1;
    case DECREMENT: return old == 0 || old > value ? value : old - 1;
    default: return combine_common(operation, old, value);
  }
}
template <> float combine(int32_t operation, float old, float value) { return combine_common(operation, old, value); }
template <> double combine(int32_t operation, double old, double value) { return combine_common(operation, old, value); }

template <typename T> struct Bits;
template <> struct Bits<float> { using type = uint32_t; };
template <> struct Bits<double> { using type = uint64_t; };
template <> struct Bits<int32_t> { using type = uint32_t; };
template <> struct Bits<uint32_t> { using type = uint32_t; };
template <> struct Bits<int64_t> { using type = uint64_t; };
template <> struct Bits<uint64_t> { using type = uint64_t; };

template <typename T> T update(T *address, int32_t operation, T value, uint64_t pc) {
  using B = typename Bits<T>::type;
  check(address, sizeof(T), pc);
  ReadModifyWrite order(address);
  B old = __atomic_load_n((B *)address, __ATOMIC_RELAXED), made;
  do {
    T number, result;
    memcpy(&number, &old, sizeof number);
    result = combine<T>(operation, number, value);
    memcpy(&made, &result, sizeof made);
  } while (!__atomic_compare_exchange_n((B *)address, &old, made, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  order.wrote();
  T before;
  memcpy(&before, &old, sizeof before);
  return before;
}

}  // namespace

#define ATOMIC_UPDATE(NAME, TYPE)                                                        \
  extern "C" TYPE treadle_emu_atomic_##NAME(TYPE *address, int32_t operation, TYPE value) { \
    return update<TYPE>(address, operation, value, (uint64_t)__builtin_return_address(0)); \
  }
ATOMIC_UPDATE(i32, int32_t)
ATOMIC_UPDATE(u32, uint32_t)
ATOMIC_UPDATE(i64, int64_t)
ATOMIC_UPDATE(u64, uint64_t)
ATOMIC_UPDATE(f32, float)
ATOMIC_UPDATE(f64, double)

extern "C" uint32_t treadle_emu_cas_32(uint32_t *address, uint32_t expected, uint32_t value) {
  check(address, 4, (uint64_t)__builtin_return_address(0));
  ReadModifyWrite order(address);
  if (__atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) order.wrote();
  return expected;
}
extern "C" uint64_t treadle_emu_cas_64(uint64_t *address, uint64_t expected, uint64_t value) {
  check(address, 8, (uint64_t)__builtin_return_address(0));
  ReadModifyWrite order(address);
  if (__atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) order.wrote();
  return expected;
}
