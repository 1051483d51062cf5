// The second bodies of treadle_hopper.h's functions: what their PTX does, done by the emulator.
#pragma once

extern "C" {
void treadle_emu_mbarrier_init(uint32_t barrier, int32_t arrivals);
void treadle_emu_mbarrier_fence();
void treadle_emu_mbarrier_arrive(uint32_t barrier, int32_t bytes);
void treadle_emu_mbarrier_wait(uint32_t barrier, int32_t parity, int32_t in_cluster);
void treadle_emu_tensor_load(uint32_t tile, const treadle_tensor_map *map, uint32_t barrier, const int32_t *at,
                             uint32_t rank);
void treadle_emu_tensor_load_pixels(uint32_t tile, const treadle_tensor_map *map, uint32_t barrier, const int32_t *at,
                                    uint32_t rank, const int32_t *offsets);
void treadle_emu_tensor_store(const treadle_tensor_map *map, uint32_t tile, const int32_t *at, uint32_t rank);
void treadle_emu_bulk_commit();
void treadle_emu_bulk_wait(uint32_t pending, uint32_t written);
void treadle_emu_fence_async();
void treadle_emu_wgmma(uint32_t *sums, const uint32_t *fragment, uint64_t a, uint64_t b, uint32_t shape, int32_t keep);
void treadle_emu_wgmma_fence();
void treadle_emu_wgmma_commit();
void treadle_emu_wgmma_wait(uint32_t pending);
void treadle_emu_registers(int32_t number, int32_t increase);
void treadle_emu_named_barrier(int32_t number, int32_t threads, int32_t waits);
void treadle_emu_stmatrix(void *row, const uint32_t *values);
void treadle_emu_mbarrier_arrive_at(uint32_t barrier, int32_t rank);
void treadle_emu_tensor_load_multicast(uint32_t tile, const treadle_tensor_map *map, uint32_t barrier, uint32_t blocks,
                                       const int32_t *at, uint32_t rank);
uint32_t treadle_emu_cluster_rank();
void treadle_emu_cluster_barrier();
void treadle_emu_cluster_arrive(int32_t releases);
void treadle_emu_cluster_wait();
uint32_t treadle_emu_remote_address(uint32_t address, int32_t rank);
void treadle_emu_store_async(uint32_t to, uint32_t barrier, const void *data, uint32_t bytes);
}

TREADLE_EMU_INLINE int treadle_uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
TREADLE_EMU_INLINE unsigned treadle_uniform(unsigned x) { return __shfl_sync(0xffffffffu, x, 0); }

TREADLE_EMU_INLINE void treadle_mbarrier_init(unsigned barrier, int arrivals) {
  treadle_emu_mbarrier_init(barrier, arrivals);
}
TREADLE_EMU_INLINE void treadle_mbarrier_fence() { treadle_emu_mbarrier_fence(); }
TREADLE_EMU_INLINE void treadle_mbarrier_arrive(unsigned barrier) { treadle_emu_mbarrier_arrive(barrier, 0); }
TREADLE_EMU_INLINE void treadle_mbarrier_expect(unsigned barrier, int bytes) {
  treadle_emu_mbarrier_arrive(barrier, bytes);
}
TREADLE_EMU_INLINE void treadle_mbarrier_wait(unsigned barrier, int parity) {
  treadle_emu_mbarrier_wait(barrier, parity, 0);
}
TREADLE_EMU_INLINE void treadle_mbarrier_wait_cluster(unsigned barrier, int parity) {
  treadle_emu_mbarrier_wait(barrier, parity, 1);
}

TREADLE_EMU_INLINE void treadle_tensor_map_prefetch(const treadle_tensor_map &) {}
template <typename... AT>
TREADLE_EMU_INLINE void treadle_tensor_load(unsigned tile, const treadle_tensor_map &map, unsigned barrier, AT... at) {
  static_assert(sizeof...(AT) >= 2 && sizeof...(AT) <= 5, "a tensor map has two to five coordinates here");
  const int32_t all[] = {(int32_t)at...};
  treadle_emu_tensor_load(tile, &map, barrier, all, sizeof...(AT));
}
template <typename... AT>
TREADLE_EMU_INLINE void treadle_tensor_load_pixels(unsigned tile, const treadle_tensor_map &map, unsigned barrier,
                                                   AT... at) {
  static_assert(sizeof...(AT) == 4 || sizeof...(AT) == 6 || sizeof...(AT) == 8, "images have one to three dimensions");
  constexpr uint32_t rank = sizeof...(AT) / 2 + 1;
  const int32_t all[] = {(int32_t)at...};
  treadle_emu_tensor_load_pixels(tile, &map, barrier, all, rank, all + rank);
}
template <typename... AT>
TREADLE_EMU_INLINE void treadle_tensor_store(const treadle_tensor_map &map, unsigned tile, AT... at) {
  static_assert(sizeof...(AT) >= 2 && sizeof...(AT) <= 5, "a tensor store has two to five coordinates");
  const int32_t all[] = {(int32_t)at...};
  treadle_emu_tensor_store(&map, tile, all, sizeof...(AT));
}
TREADLE_EMU_INLINE void treadle_bulk_commit() { treadle_emu_bulk_commit(); }
template <int PENDING> TREADLE_EMU_INLINE void treadle_bulk_wait() { treadle_emu_bulk_wait(PENDING, 1); }
template <int PENDING> TREADLE_EMU_INLINE void treadle_bulk_wait_read() { treadle_emu_bulk_wait(PENDING, 0); }
TREADLE_EMU_INLINE void treadle_fence_async() { treadle_emu_fence_async(); }

TREADLE_EMU_INLINE void treadle_wgmma_fence() { treadle_emu_wgmma_fence(); }
TREADLE_EMU_INLINE void treadle_wgmma_commit() { treadle_emu_wgmma_commit(); }
template <int PENDING> TREADLE_EMU_INLINE void treadle_wgmma_wait() { treadle_emu_wgmma_wait(PENDING); }

// As runtime/hopper.h numbers kinds.
template <typename T> struct treadle_emu_operand;
#define TREADLE_EMU_OPERAND(TYPE, KIND, SUM, FAMILY) \
  template <> struct treadle_emu_operand<TYPE> {     \
    static constexpr unsigned kind = KIND, family = FAMILY; \
    using sum = SUM;                                 \
  };
TREADLE_EMU_OPERAND(treadle_half, 0, float, 0)
TREADLE_EMU_OPERAND(treadle_bfloat16, 1, float, 1)
TREADLE_EMU_OPERAND(treadle_tf32, 2, float, 2)
TREADLE_EMU_OPERAND(treadle_f8E4M3FN, 3, float, 3)
TREADLE_EMU_OPERAND(treadle_f8E5M2, 4, float, 3)
TREADLE_EMU_OPERAND(signed char, 5, int, 4)
TREADLE_EMU_OPERAND(unsigned char, 6, int, 4)
#undef TREADLE_EMU_OPERAND
template <typename T, typename U> struct treadle_emu_is_same { static constexpr bool value = false; };
template <typename T> struct treadle_emu_is_same<T, T> { static constexpr bool value = true; };

template <int N, typename A, typename B, int TRANSPOSE_A, int TRANSPOSE_B, int IN_REGISTERS, typename SUM>
constexpr unsigned treadle_emu_shape() {
  using a = treadle_emu_operand<A>;
  using b = treadle_emu_operand<B>;
  static_assert(N >= 8 && N <= 256 && N % 8 == 0, "a product of a warpgroup has 8 to 256 columns, in steps of 8");
  static_assert(a::family == b::family, "operands of these two types are not multiplied");
  static_assert(treadle_emu_is_same<SUM, typename a::sum>::value, "sums are float, or int where the operands are");
  static_assert(a::family < 2 || !(TRANSPOSE_A || TRANSPOSE_B), "only operands of 16 bits may lie across the terms");
  return N | a::kind << 12 | b::kind << 16 | (unsigned)TRANSPOSE_A << 20 | (unsigned)TRANSPOSE_B << 21 |
         (unsigned)IN_REGISTERS << 22;
}
template <int N, typename A, typename B, int TRANSPOSE_A, int TRANSPOSE_B, typename SUM>
TREADLE_EMU_INLINE void treadle_wgmma(treadle_vec<SUM, 4> *sums, unsigned long long a, unsigned long long b, bool keep) {
  constexpr unsigned shape = treadle_emu_shape<N, A, B, TRANSPOSE_A, TRANSPOSE_B, 0, SUM>();
  treadle_emu_wgmma((uint32_t *)sums, nullptr, a, b, shape, keep);
}
template <int N, typename A, typename B, int TRANSPOSE_B, typename SUM>
TREADLE_EMU_INLINE void treadle_wgmma_registers(treadle_vec<SUM, 4> *sums, treadle_vec<unsigned, 4> a,
                                                unsigned long long b, bool keep) {
  constexpr unsigned shape = treadle_emu_shape<N, A, B, 0, TRANSPOSE_B, 1, SUM>();
  treadle_emu_wgmma((uint32_t *)sums, a.v, 0, b, shape, keep);
}

template <int COUNT, typename SUM> TREADLE_EMU_INLINE void treadle_wgmma_sums(treadle_vec<SUM, 4> *) {}
TREADLE_EMU_INLINE void treadle_before_wait(float) {}

template <int REGISTERS> TREADLE_EMU_INLINE void treadle_registers_decrease() { treadle_emu_registers(REGISTERS, 0); }
template <int REGISTERS> TREADLE_EMU_INLINE void treadle_registers_increase() { treadle_emu_registers(REGISTERS, 1); }
TREADLE_EMU_INLINE void treadle_named_barrier(int number, int threads) { treadle_emu_named_barrier(number, threads, 1); }
TREADLE_EMU_INLINE void treadle_named_barrier_arrive(int number, int threads) {
  treadle_emu_named_barrier(number, threads, 0);
}
TREADLE_EMU_INLINE void treadle_stmatrix_x4(void *row, treadle_vec<unsigned, 4> x) { treadle_emu_stmatrix(row, x.v); }


TREADLE_EMU_INLINE void treadle_mbarrier_arrive_at(unsigned barrier, int rank) {
  treadle_emu_mbarrier_arrive_at(barrier, rank);
}
TREADLE_EMU_INLINE void treadle_tensor_load_multicast(unsigned tile, const treadle_tensor_map &map, unsigned barrier,
                                                      int blocks, int x, int y) {
  const int32_t all[] = {x, y};
  treadle_emu_tensor_load_multicast(tile, &map, barrier, (uint32_t)blocks, all, 2);
}
TREADLE_EMU_INLINE int treadle_cluster_rank() { return (int)treadle_emu_cluster_rank(); }
TREADLE_EMU_INLINE void treadle_cluster_barrier() { treadle_emu_cluster_barrier(); }
TREADLE_EMU_INLINE void treadle_cluster_arrive() { treadle_emu_cluster_arrive(0); }
TREADLE_EMU_INLINE void treadle_cluster_wait() { treadle_emu_cluster_wait(); }
TREADLE_EMU_INLINE unsigned treadle_remote_address(unsigned address, int rank) {
  return treadle_emu_remote_address(address, rank);
}
template <typename T>
TREADLE_EMU_INLINE void treadle_store_async(unsigned to, unsigned barrier, treadle_vec<T, 2> x) {
  static_assert(sizeof x == 8, "two numbers of 32 bits are stored");
  treadle_emu_store_async(to, barrier, x.v, sizeof x);
}
// Launches run one after another.
TREADLE_EMU_INLINE void treadle_grid_done() {}
TREADLE_EMU_INLINE void treadle_grid_wait() {}
