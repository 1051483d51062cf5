// As hopper_product.cu, but each consumer multiplies every second tile alone, while the other stores its own.
#include "treadle_hopper.h"
extern "C" __global__ void __launch_bounds__(384, 1) product(
    const __grid_constant__ treadle_tensor_map map_a, const __grid_constant__ treadle_tensor_map map_b,
    const __grid_constant__ treadle_tensor_map map_c, int M, int N, int K) {
  alignas(1024) extern __shared__ char treadle_dynamic[];
  treadle_half (&sa)[4][128][64] = *reinterpret_cast<treadle_half (*)[4][128][64]>(treadle_dynamic);
  treadle_half (&sb)[4][2][64][64] = *reinterpret_cast<treadle_half (*)[4][2][64][64]>(treadle_dynamic + 65536);
  treadle_half (&sc)[2][64][64] = *reinterpret_cast<treadle_half (*)[2][64][64]>(treadle_dynamic + 131072);
  __shared__ treadle_mbarrier full[4];
  __shared__ treadle_mbarrier empty[4];
  const unsigned sa_at = treadle_uniform(treadle_shared_address(sa));
  const unsigned sb_at = treadle_uniform(treadle_shared_address(sb));
  const unsigned sc_at = treadle_uniform(treadle_shared_address(sc));
  const unsigned full_at = treadle_uniform(treadle_shared_address(full));
  const unsigned empty_at = treadle_uniform(treadle_shared_address(empty));
  const int thread = threadIdx.x, role = treadle_uniform(thread / 128);
  const int steps = (K + 63) / 64, rows = (M + 127) / 128, columns = (N + 127) / 128;
  if (thread == 0) {
    for (int s = 0; s < 4; ++s) {
      treadle_mbarrier_init(full_at + 8 * s, 1);
      treadle_mbarrier_init(empty_at + 8 * s, 4);
    }
    treadle_mbarrier_fence();
  }
  treadle_barrier();
  if (role == 0) {
    treadle_registers_decrease<40>();
    if (thread == 0) {
      int stage = 0, phase = 0;
      for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
        for (int k = 0; k < steps; ++k) {
          treadle_mbarrier_wait(empty_at + 8 * stage, phase ^ 1);
          treadle_mbarrier_expect(full_at + 8 * stage, 32768);
          treadle_tensor_load(sa_at + stage * 16384, map_a, full_at + 8 * stage, k * 64, tile % rows * 128);
          for (int j = 0; j < 2; ++j)
            treadle_tensor_load(sb_at + stage * 16384 + j * 8192, map_b, full_at + 8 * stage,
                                tile / rows * 128 + j * 64, k * 64);
          if (++stage == 4) stage = 0, phase ^= 1;
        }
      }
    }
  } else {
    treadle_registers_increase<232>();
    const int lane = thread % 32, warp = thread % 128 / 32, consumer = role - 1;
    int stage = 0, phase = 0, turn = 0;
    for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x, ++turn) {
      if (turn % 2 != consumer) {
        const int next = stage + steps;
        phase ^= next / 4 & 1;
        stage = next % 4;
        continue;
      }
      if (turn > 0) treadle_named_barrier(3 + consumer, 256);
      treadle_vec<float, 4> acc[32];
      int before = 0;
      const unsigned long long da = treadle_matrix(sa_at, 16, 1024, 1) ;
      const unsigned long long db = treadle_matrix(sb_at, 8192, 1024, 1);
      for (int k = 0; k < steps; ++k) {
        treadle_mbarrier_wait(full_at + 8 * stage, phase);
        treadle_wgmma_fence();
        for (int kk = 0; kk < 4; ++kk)
          for (int i = 0; i < 2; ++i)
            treadle_wgmma<128, treadle_half, treadle_half, 0, 1>(
                acc + i * 16, da + stage * 1024 + i * 512 + kk * 2, db + stage * 1024 + kk * 128,
                k + kk > 0);
        treadle_wgmma_commit();
        if (k > 0) {
          treadle_wgmma_wait<1>();
          if (lane == 0) treadle_mbarrier_arrive(empty_at + 8 * before);
        }
        before = stage;
        if (++stage == 4) stage = 0, phase ^= 1;
      }
      if (tile + gridDim.x < rows * columns) treadle_named_barrier_arrive(3 + (consumer ^ 1), 256);
      treadle_wgmma_wait<0>();
      if (lane == 0) treadle_mbarrier_arrive(empty_at + 8 * before);
      for (int piece = 0; piece < 4; ++piece) {
        const int i = piece / 2, j = piece % 2;
        if (thread % 128 == 0) treadle_bulk_wait_read<0>();
        treadle_named_barrier(1 + consumer, 128);
        for (int q = 0; q < 4; ++q) {
          treadle_vec<unsigned, 4> x;
          for (int e = 0; e < 4; ++e) {
            const treadle_vec<float, 4> &d = acc[i * 16 + j * 8 + q * 2 + e / 2];
            const unsigned low = treadle_float_to_half(d.v[e % 2 * 2]).bits;
            x.v[e] = low | (unsigned)treadle_float_to_half(d.v[e % 2 * 2 + 1]).bits << 16;
          }
          const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8, column = q * 2 + lane / 16;
          treadle_stmatrix_x4(&sc[consumer][row][(column ^ row % 8) * 8], x);
        }
        treadle_fence_async();
        treadle_named_barrier(1 + consumer, 128);
        if (thread % 128 == 0) {
          treadle_tensor_store(map_c, sc_at + consumer * 8192, tile / rows * 128 + j * 64,
                               tile % rows * 128 + i * 64);
          treadle_bulk_commit();
        }
      }
    }
    if (thread % 128 == 0) treadle_bulk_wait<0>();
  }
}
