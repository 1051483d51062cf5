// A product of a warpgroup: its operands from shared memory, as matrix descriptors lay them out, and its sums.
#include <string.h>

#include "floats.h"
#include "hopper.h"

namespace emu {

// Sources: PTX ISA, "Matrix descriptor format" and "Strides"; the canonical layouts of CUTLASS' mma_traits_sm90_gmma.hpp.
Matrix::Matrix(const Product &product, uint32_t operand)
    : descriptor(operand ? product.b : product.a), rows(operand ? product.shape.columns() : 64),
      across(operand ? product.shape.b_across() : product.shape.a_across()), start((descriptor & 0x3fff) << 4),
      leading((descriptor >> 16 & 0x3fff) << 4), stride((descriptor >> 32 & 0x3fff) << 4), swizzle(descriptor >> 62) {}

int64_t Matrix::wrong() const {
  const uint64_t unused = descriptor & (3ull << 14 | 3ull << 30 | 7ull << 46 | 0x3ffull << 52);
  if (unused) return 1;
  if (descriptor >> 49 & 7) return 2;
  // The pattern of a swizzle begins where its rows do.
  const uint32_t span = span_of(swizzle);
  if (swizzle && start % (8 * span) >= span) return 3;
  if (swizzle && stride % (8 * span)) return 4;
  // Across the terms a pattern holds `span` bytes; the next one begins behind the leading dimension.
  if (swizzle && across && 2 * rows > span && leading % (8 * span)) return 5;
  return 0;
}

uint32_t Matrix::chunk(uint32_t n) const {
  const uint32_t span = span_of(swizzle);
  uint32_t address;
  if (!across) {
    // 16 bytes along the terms of a row.
    const uint32_t row = n / 2, half = n % 2;
    address = start + row / 8 * stride + row % 8 * span + half * (swizzle ? CHUNK : leading);
  } else {
    // 8 elements across the terms, at one of 16 terms.
    const uint32_t term = n % 16, eighth = n / 16, in_span = span / CHUNK;
    address = swizzle ? start + eighth / in_span * leading + term / 8 * stride + term % 8 * span + eighth % in_span * CHUNK
                      : start + eighth * stride + term / 8 * leading + term % 8 * CHUNK;
  }
  return swizzled(address, swizzle) & (WINDOW_BYTES - 1);
}

namespace {

// Bytes of an operand, 32 of terms for each row.
void fetch(Worker &w, const Matrix &matrix, uint8_t (*rows)[32]) {
  for (uint32_t n = 0; n < matrix.chunks(); ++n) {
    uint8_t bytes[CHUNK];
    memset(bytes, 0xff, sizeof bytes);
    const WindowPlace place = place_of(w, matrix.chunk(n));
    if (place.room >= (int64_t)CHUNK) memcpy(bytes, place.memory, CHUNK);
    if (!matrix.across) {
      memcpy(rows[n / 2] + n % 2 * CHUNK, bytes, CHUNK);
      continue;
    }
    for (uint32_t i = 0; i < 8; ++i) memcpy(rows[n / 16 * 8 + i] + n % 16 * 2, bytes + 2 * i, 2);
  }
}

void from_registers(const Product &product, uint8_t (*rows)[32]) {
  for (uint32_t t = 0; t < WARPGROUP; ++t) {
    for (uint32_t r = 0; r < 4; ++r) {
      memcpy(rows[t / WARP_SIZE * 16 + t % WARP_SIZE / 4 + r % 2 * 8] + t % 4 * 4 + r / 2 * 16, &product.fragments[t][r], 4);
    }
  }
}

uint16_t two(const uint8_t *row, uint32_t k) {
  uint16_t x;
  memcpy(&x, row + 2 * k, 2);
  return x;
}

float number(Kind kind, const uint8_t *row, uint32_t k) {
  uint32_t word;
  switch (kind) {
    case F16: return half_value(two(row, k));
    case BF16: return bits((uint32_t)two(row, k) << 16);
    case TF32: memcpy(&word, row + 4 * k, 4); return bits(word & 0xffffe000u);
    case F8E4M3: return f8e4m3_value(row[k]);
    default: return f8e5m2_value(row[k]);
  }
}

int32_t whole(Kind kind, const uint8_t *row, uint32_t k) { return kind == S8 ? (int8_t)row[k] : row[k]; }

void add_floats(const Operands &o, float *sums, uint32_t columns, uint32_t terms) {
  for (uint32_t row = 0; row < 64; ++row) {
    float *out = sums + row * columns;
    for (uint32_t k = 0; k < terms; ++k) {
      const float a = o.a[row][k];
      for (uint32_t n = 0; n < columns; ++n) out[n] += a * o.b[k][n];
    }
  }
}

// Products of floats of 8 bits and the sum so far are aligned to the largest of them, of which 14 bits are kept.
// Source: DeepSeek-V3 Technical Report, section 3.5.2.
void add_small_floats(const Operands &o, float *sums, uint32_t columns) {
  constexpr float UNITS = 8192;  // 2^13
  for (uint32_t row = 0; row < 64; ++row) {
    float *out = sums + row * columns;
    float largest[MOST_COLUMNS], total[MOST_COLUMNS];
    for (uint32_t n = 0; n < columns; ++n) largest[n] = __builtin_fabsf(out[n]);
    for (uint32_t k = 0; k < MOST_TERMS; ++k) {
      for (uint32_t n = 0; n < columns; ++n) {
        const float size = __builtin_fabsf(o.a[row][k] * o.b[k][n]);
        largest[n] = size > largest[n] ? size : largest[n];
      }
    }
    // The power of two of the largest; what is smaller than all floats' units needs no cutting.
    for (uint32_t n = 0; n < columns; ++n) {
      uint32_t size;
      memcpy(&size, &largest[n], 4);
      size &= 0x7f800000u;
      largest[n] = bits(size < 14u << 23 ? 14u << 23 : size > 230u << 23 ? 230u << 23 : size);
    }
    const auto cut = [&](float x, float power) {
      const float units = x * (UNITS / power);
      return __builtin_fabsf(units) < 4 * UNITS ? (float)(int32_t)units : units;
    };
    for (uint32_t n = 0; n < columns; ++n) total[n] = cut(out[n], largest[n]);
    for (uint32_t k = 0; k < MOST_TERMS; ++k) {
      for (uint32_t n = 0; n < columns; ++n) total[n] += cut(o.a[row][k] * o.b[k][n], largest[n]);
    }
    for (uint32_t n = 0; n < columns; ++n) out[n] = total[n] * (largest[n] / UNITS);
  }
}

void add_integers(const Product &product, const uint8_t (*a)[32], const uint8_t (*b)[32]) {
  const uint32_t columns = product.shape.columns();
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t n = 0; n < columns; ++n) {
      uint32_t &sum = product.sums->values[row * columns + n];
      for (uint32_t k = 0; k < MOST_TERMS; ++k) {
        sum += (uint32_t)(whole(product.shape.a(), a[row], k) * whole(product.shape.b(), b[n], k));
      }
    }
  }
}

}  // namespace

void multiply(Worker &w, const Product &product) {
  uint8_t a[64][32], b[MOST_COLUMNS][32];
  const Shape shape = product.shape;
  const uint32_t columns = shape.columns(), terms = shape.terms();
  if (shape.in_registers()) {
    from_registers(product, a);
  } else {
    fetch(w, Matrix(product, 0), a);
  }
  fetch(w, Matrix(product, 1), b);
  if (!product.keep) memset(product.sums->values, 0, 64 * columns * sizeof(uint32_t));
  if (shape.integers()) {
    add_integers(product, a, b);
    return;
  }
  Operands &o = w.hopper->operands;
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t k = 0; k < terms; ++k) o.a[row][k] = number(shape.a(), a[row], k);
  }
  for (uint32_t n = 0; n < columns; ++n) {
    for (uint32_t k = 0; k < terms; ++k) o.b[k][n] = number(shape.b(), b[n], k);
  }
  float *sums = (float *)product.sums->values;
  if (shape.a() == F8E4M3 || shape.a() == F8E5M2) {
    add_small_floats(o, sums, columns);
  } else {
    add_floats(o, sums, columns, terms);
  }
}

void count_product(Worker &w, const Product &product) {
  const uint32_t columns = product.shape.columns();
  count_operations(w, product.pc, 2ull * 64 * columns * product.shape.terms());
  count_shared_reads(w, product.pc, 32ull * (columns + (product.shape.in_registers() ? 0 : 64)));
}

}  // namespace emu
