// Shuffles, votes and warp barriers.
#pragma once

extern "C" {
uint64_t treadle_emu_shuffle(uint32_t mask, uint64_t value, int32_t mode, int32_t argument, int32_t width);
uint32_t treadle_emu_match(uint32_t mask, uint64_t value);
void treadle_emu_syncwarp(uint32_t mask);
uint32_t treadle_emu_active_mask();
}

// A macro, like every barrier, so that its place is a line of the text.
#define __syncwarp(...) treadle_emu_syncwarp(treadle_emu_mask(__VA_ARGS__))
TREADLE_EMU_INLINE uint32_t treadle_emu_mask(uint32_t mask = 0xffffffffu) { return mask; }

template <typename T>
TREADLE_EMU_INLINE T treadle_emu_exchange(unsigned mask, T value, int mode, int argument, int width) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = treadle_emu_shuffle(mask, bits, mode, argument, width);
  T result;
  __builtin_memcpy(&result, &bits, sizeof result);
  return result;
}
template <typename T> TREADLE_EMU_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return treadle_emu_exchange(mask, value, 0, lane, width);
}
template <typename T> TREADLE_EMU_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return treadle_emu_exchange(mask, value, 1, (int)delta, width);
}
template <typename T> TREADLE_EMU_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return treadle_emu_exchange(mask, value, 2, (int)delta, width);
}
template <typename T> TREADLE_EMU_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return treadle_emu_exchange(mask, value, 3, lanes, width);
}

TREADLE_EMU_INLINE unsigned __ballot_sync(unsigned mask, int predicate) { return treadle_emu_ballot(mask, predicate); }
TREADLE_EMU_INLINE int __any_sync(unsigned mask, int predicate) { return treadle_emu_ballot(mask, predicate) != 0; }
TREADLE_EMU_INLINE int __all_sync(unsigned mask, int predicate) { return treadle_emu_ballot(mask, !predicate) == 0; }
TREADLE_EMU_INLINE unsigned __activemask() { return treadle_emu_active_mask(); }
template <typename T> TREADLE_EMU_INLINE unsigned __match_any_sync(unsigned mask, T value) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return treadle_emu_match(mask, bits);
}

// Only the lanes of the mask contribute.
#define TREADLE_EMU_REDUCE(NAME, TYPE, COMBINE)                                       \
  TREADLE_EMU_INLINE TYPE NAME(unsigned mask, TYPE value) {                           \
    TYPE all = value;                                                                 \
    for (int lane = 0, first = 1; lane < 32; ++lane) {                                \
      if (!(mask >> lane & 1)) continue;                                              \
      TYPE x = __shfl_sync(mask, value, lane);                                        \
      all = first ? x : COMBINE;                                                      \
      first = 0;                                                                      \
    }                                                                                 \
    return all;                                                                       \
  }
TREADLE_EMU_REDUCE(__reduce_add_sync, unsigned, all + x)
TREADLE_EMU_REDUCE(__reduce_add_sync, int, all + x)
TREADLE_EMU_REDUCE(__reduce_min_sync, unsigned, min(all, x))
TREADLE_EMU_REDUCE(__reduce_min_sync, int, min(all, x))
TREADLE_EMU_REDUCE(__reduce_max_sync, unsigned, max(all, x))
TREADLE_EMU_REDUCE(__reduce_max_sync, int, max(all, x))
TREADLE_EMU_REDUCE(__reduce_and_sync, unsigned, all & x)
TREADLE_EMU_REDUCE(__reduce_or_sync, unsigned, all | x)
TREADLE_EMU_REDUCE(__reduce_xor_sync, unsigned, all ^ x)
#undef TREADLE_EMU_REDUCE
