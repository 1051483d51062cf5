// float2, int4 and their kin, aligned as on the device.
#pragma once

#define TREADLE_EMU_VECTORS(NAME, TYPE, BYTES)                                                              \
  struct __attribute__((aligned(BYTES))) NAME##1 { TYPE x; };                                               \
  struct __attribute__((aligned(2 * BYTES))) NAME##2 { TYPE x, y; };                                        \
  struct NAME##3 { TYPE x, y, z; };                                                                         \
  struct __attribute__((aligned(4 * BYTES > 16 ? 16 : 4 * BYTES))) NAME##4 { TYPE x, y, z, w; };            \
  TREADLE_EMU_INLINE NAME##1 make_##NAME##1(TYPE x) { return {x}; }                                         \
  TREADLE_EMU_INLINE NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                              \
  TREADLE_EMU_INLINE NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; }                   \
  TREADLE_EMU_INLINE NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }

#define uint3 treadle_emu_uint3  // the built-in variables' own type comes first
TREADLE_EMU_VECTORS(char, signed char, 1)
TREADLE_EMU_VECTORS(uchar, unsigned char, 1)
TREADLE_EMU_VECTORS(short, short, 2)
TREADLE_EMU_VECTORS(ushort, unsigned short, 2)
TREADLE_EMU_VECTORS(int, int, 4)
TREADLE_EMU_VECTORS(uint, unsigned, 4)
TREADLE_EMU_VECTORS(longlong, long long, 8)
TREADLE_EMU_VECTORS(ulonglong, unsigned long long, 8)
TREADLE_EMU_VECTORS(float, float, 4)
TREADLE_EMU_VECTORS(double, double, 8)
#undef uint3
#undef TREADLE_EMU_VECTORS
