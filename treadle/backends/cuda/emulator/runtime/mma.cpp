// Tensor core products and the matrix loads that feed them; fragments as the PTX manual lays them out.
#include <string.h>

#include "floats.h"
#include "state.h"

namespace emu {
namespace {

enum Kind : int32_t { F16, BF16, TF32 };

struct Mma {
  const uint32_t *a, *b;
  const float *c;
  float *d;
};

template <Kind kind> inline float element(const uint32_t *registers, int n) {
  if (kind == TF32) return bits(registers[n] & 0xffffe000u);
  uint32_t two = registers[n / 2];
  uint32_t one = n % 2 ? two >> 16 : two & 0xffff;
  return kind == F16 ? half_value(one) : bits(one << 16);
}

Mma &operands(Worker &w, uint32_t warp, uint32_t lane) {
  return *(Mma *)w.fibers[warp * WARP_SIZE + lane].collective->data;
}

template <Kind kind> void run_mma(Worker &w, uint32_t warp, uint32_t lanes) {
  constexpr int depth = kind == TF32 ? 8 : 16, pack = kind == TF32 ? 1 : 2;
  float a[16][16] = {}, b[16][8] = {}, d[16][8] = {};
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    const Mma &own = operands(w, warp, lane);
    int group = (int)lane / 4, first = (int)lane % 4 * pack, column = (int)lane % 4 * 2;
    for (int n = 0; n < 4 * pack; ++n) {
      int part = n / pack;
      a[group + part % 2 * 8][first + n % pack + part / 2 * 4 * pack] = element<kind>(own.a, n);
    }
    for (int n = 0; n < 2 * pack; ++n) b[first + n % pack + n / pack * 4 * pack][group] = element<kind>(own.b, n);
    for (int n = 0; n < 4; ++n) d[group + n / 2 * 8][column + n % 2] = own.c[n];
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8];
    memcpy(sums, d[row], sizeof sums);
    for (int k = 0; k < depth; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    memcpy(d[row], sums, sizeof sums);
  }
  const uint64_t pc = w.fibers[warp * WARP_SIZE + (uint32_t)__builtin_ctz(lanes)].collective->pc;
  if (w.counting) count_operations(w, pc, 2 * 16 * 8 * depth);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    const Mma &own = operands(w, warp, lane);
    for (int n = 0; n < 4; ++n) own.d[n] = d[lane / 4 + n / 2 * 8][lane % 4 * 2 + n % 2];
  }
}

struct ByteMma {
  int32_t signs;
  const uint32_t *a, *b;
  const int32_t *c;
  int32_t *d;
};

// A fragment of bytes as the numbers that they are: register n / 4, from its lowest byte.
int32_t byte(const uint32_t *registers, int n, bool has_sign) {
  const uint8_t one = (uint8_t)(registers[n / 4] >> n % 4 * 8);
  return has_sign ? (int8_t)one : one;
}

void run_byte_mma(Worker &w, uint32_t warp, uint32_t lanes) {
  constexpr int depth = 32;
  int32_t a[16][depth] = {}, b[depth][8] = {};
  // Unsigned, which may wrap.
  uint32_t d[16][8] = {};
  const auto operands = [&](uint32_t lane) -> const ByteMma & {
    return *(ByteMma *)w.fibers[warp * WARP_SIZE + lane].collective->data;
  };
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    const ByteMma &own = operands(lane);
    int group = (int)lane / 4, first = (int)lane % 4 * 4, column = (int)lane % 4 * 2;
    for (int n = 0; n < 16; ++n) a[group + n / 4 % 2 * 8][first + n % 4 + n / 8 * 16] = byte(own.a, n, own.signs & 1);
    for (int n = 0; n < 8; ++n) b[first + n % 4 + n / 4 * 16][group] = byte(own.b, n, own.signs & 2);
    for (int n = 0; n < 4; ++n) d[group + n / 2 * 8][column + n % 2] = (uint32_t)own.c[n];
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < depth; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += (uint32_t)(a[row][k] * b[k][column]);
    }
  }
  const uint64_t pc = w.fibers[warp * WARP_SIZE + (uint32_t)__builtin_ctz(lanes)].collective->pc;
  if (w.counting) count_operations(w, pc, 2 * 16 * 8 * depth);
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    const ByteMma &own = operands(lane);
    for (int n = 0; n < 4; ++n) own.d[n] = (int32_t)d[lane / 4 + n / 2 * 8][lane % 4 * 2 + n % 2];
  }
}

struct Ldmatrix {
  const uint8_t *row;
  uint32_t *result;
  int32_t count, transpose;
};

Ldmatrix &load(Worker &w, uint32_t warp, uint32_t lane) {
  return *(Ldmatrix *)w.fibers[warp * WARP_SIZE + lane].collective->data;
}

void run_ldmatrix(Worker &w, uint32_t warp, uint32_t lanes) {
  const Ldmatrix &one = load(w, warp, __builtin_ctz(lanes));
  const int count = one.count, transpose = one.transpose;
  uint16_t matrices[4][8][8];
  memset(matrices, 0xff, sizeof matrices);
  Fiber *running = w.current;
  const uint8_t *rows[WARP_SIZE] = {};
  for (int n = 0; n < count * 8; ++n) {
    if (!(lanes >> n & 1)) continue;
    const Fiber &lane = w.fibers[warp * WARP_SIZE + (uint32_t)n];
    const uint8_t *row = load(w, warp, (uint32_t)n).row;
    if (w.launch->request->checks) {
      w.current = (Fiber *)&lane;
      check_access(row, 16, READ, lane.collective->pc);
    }
    rows[n] = row;
    memcpy(matrices[n / 8][n % 8], row, 16);
  }
  const uint64_t pc = w.fibers[warp * WARP_SIZE + (uint32_t)__builtin_ctz(lanes)].collective->pc;
  if (w.counting) count_matrices(w, rows, (uint32_t)count, pc, false);
  w.current = running;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    uint32_t *result = load(w, warp, lane).result;
    for (int n = 0; n < count; ++n) {
      uint32_t major = lane / 4, minor = lane % 4 * 2;
      uint32_t low = transpose ? matrices[n][minor][major] : matrices[n][major][minor];
      uint32_t high = transpose ? matrices[n][minor + 1][major] : matrices[n][major][minor + 1];
      result[n] = low | high << 16;
    }
  }
}

struct Stmatrix {
  uint8_t *row;
  const uint32_t *values;
};

// Lane 8n + r has the address of row r of matrix n.
void run_stmatrix(Worker &w, uint32_t warp, uint32_t lanes) {
  Fiber *running = w.current;
  const uint8_t *rows[WARP_SIZE] = {};
  uint64_t pc = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const uint32_t n = (uint32_t)__builtin_ctz(rest);
    Fiber &lane = w.fibers[warp * WARP_SIZE + n];
    uint8_t *row = ((Stmatrix *)lane.collective->data)->row;
    pc = lane.collective->pc;
    w.current = &lane;
    if (w.launch->request->checks) check_access(row, 16, WRITE, pc);
    rows[n] = row;
    for (uint32_t quad = 0; quad < 4; ++quad) {
      const uint32_t from = n % 8 * 4 + quad;
      if (lanes >> from & 1) memcpy(row + quad * 4, &((Stmatrix *)w.fibers[warp * WARP_SIZE + from].collective->data)->values[n / 8], 4);
    }
  }
  w.current = running;
  if (w.counting) count_matrices(w, rows, 4, pc, true);
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" void treadle_emu_stmatrix(void *row, const uint32_t *values) {
  Stmatrix own = {(uint8_t *)row, values};
  Collective collective = {run_stmatrix, ~0u, true, (uint64_t)__builtin_return_address(0), &own};
  collect(collective);
}

extern "C" void treadle_emu_mma(int32_t kind, const uint32_t *a, const uint32_t *b, const float *c, float *d) {
  Mma own = {a, b, c, d};
  auto run = kind == F16 ? run_mma<F16> : kind == BF16 ? run_mma<BF16> : run_mma<TF32>;
  Collective collective = {run, ~0u, true, (uint64_t)__builtin_return_address(0), &own};
  collect(collective);
}

extern "C" void treadle_emu_mma_bytes(int32_t signs, const uint32_t *a, const uint32_t *b, const int32_t *c,
                                      int32_t *d) {
  ByteMma own = {signs, a, b, c, d};
  Collective collective = {run_byte_mma, ~0u, true, (uint64_t)__builtin_return_address(0), &own};
  collect(collective);
}

extern "C" void treadle_emu_ldmatrix(const void *row, uint32_t *result, int32_t count, int32_t transpose) {
  Ldmatrix own = {(const uint8_t *)row, result, count, transpose};
  Collective collective = {run_ldmatrix, ~0u, true, (uint64_t)__builtin_return_address(0), &own};
  collect(collective);
}
