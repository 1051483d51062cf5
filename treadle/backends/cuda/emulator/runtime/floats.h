// The numbers that tensor cores read, as float.
#pragma once
#include <stdint.h>
#include <string.h>

namespace emu {

inline float bits(uint32_t x) {
  float r;
  memcpy(&r, &x, 4);
  return r;
}

// Exponents are moved by a product, which makes the small numbers right as well.
inline float half_value(uint32_t h) {
  float magnitude = bits((h & 0x7fffu) << 13) * 5.192296858534828e33f;  // 2^112
  uint32_t special = (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
  uint32_t made;
  memcpy(&made, &magnitude, 4);
  return bits(made | special | (h & 0x8000u) << 16);
}

inline float f8e5m2_value(uint32_t x) { return half_value(x << 8); }
inline float f8e4m3_value(uint32_t x) {
  if ((x & 0x7f) == 0x7f) return bits(0x7fc00000u | (x & 0x80u) << 24);
  return bits((x & 0x7fu) << 20) * bits(247u << 23) * bits((x & 0x80u) << 24 | 0x3f800000u);  // 2^120
}

}  // namespace emu
