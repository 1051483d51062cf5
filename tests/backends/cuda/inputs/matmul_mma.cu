// C = A B with f16 operands and f32 sums, by hand: 64x64 tiles, K in steps of 32 that three stages hold, which are
// filled by asynchronous copies of 16 bytes. Four warps compute 32x32 each. M and N are multiples of 64, K of 32.
#include "treadle_cuda.h"

constexpr int TILE = 64, DEPTH = 32, STAGES = 3;
// 16 more bytes a row: the eight rows that ldmatrix reads at a time then lie in different banks.
constexpr int ROW_A = DEPTH + 8, ROW_B = TILE + 8;

struct Stage {
  treadle_half a[TILE][ROW_A];
  treadle_half b[DEPTH][ROW_B];
};

// Every thread copies two pieces of 8 elements of each tile.
inline void fetch(Stage &stage, const treadle_half *a, const treadle_half *b, int k, int n, int step) {
  for (int piece = threadIdx.x; piece < TILE * DEPTH / 8; piece += 128) {
    const int row_a = piece / (DEPTH / 8), column_a = piece % (DEPTH / 8) * 8;
    const int row_b = piece / (TILE / 8), column_b = piece % (TILE / 8) * 8;
    treadle_cp_async_16(&stage.a[row_a][column_a], a + row_a * k + step * DEPTH + column_a);
    treadle_cp_async_16(&stage.b[row_b][column_b], b + (step * DEPTH + row_b) * n + column_b);
  }
}

inline void multiply(const Stage &stage, int row, int column, treadle_vec<float, 4> (&sums)[2][4]) {
  const int lane = threadIdx.x % 32;
  for (int k = 0; k < DEPTH; k += 16) {
    treadle_vec<unsigned, 4> a[2];
    for (int m = 0; m < 2; ++m) a[m] = treadle_ldmatrix_x4(&stage.a[row + m * 16 + lane % 16][k + lane / 16 * 8]);
    for (int n = 0; n < 4; ++n) {
      const auto b = treadle_ldmatrix_x2_trans(&stage.b[k + lane % 16][column + n * 8]);
      for (int m = 0; m < 2; ++m) sums[m][n] = treadle_mma_m16n8k16_f16(a[m], b, sums[m][n]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(128)
    matmul_mma(const treadle_half *a, const treadle_half *b, float *c, int n, int k) {
  __shared__ alignas(16) Stage stages[STAGES];
  const int warp = threadIdx.x / 32, row = warp / 2 * 32, column = warp % 2 * 32, steps = k / DEPTH;
  a += blockIdx.y * TILE * k;
  b += blockIdx.x * TILE;
  treadle_vec<float, 4> sums[2][4] = {};
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < steps) fetch(stages[s], a, b, k, n, s);
    treadle_cp_async_commit();
  }
  for (int s = 0; s < steps; ++s) {
    treadle_cp_async_wait<STAGES - 2>();
    treadle_barrier();
    const int next = s + STAGES - 1;
    if (next < steps) fetch(stages[next % STAGES], a, b, k, n, next);
    treadle_cp_async_commit();
    multiply(stages[s % STAGES], row, column, sums);
  }
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  for (int m = 0; m < 2; ++m)
    for (int j = 0; j < 4; ++j)
      for (int half = 0; half < 2; ++half) {
        float *to = c + (blockIdx.y * TILE + row + m * 16 + half * 8 + g) * n + blockIdx.x * TILE + column + j * 8 + 2 * q;
        treadle_store(to, treadle_vec<float, 2>{{sums[m][j].v[2 * half], sums[m][j].v[2 * half + 1]}});
      }
}
