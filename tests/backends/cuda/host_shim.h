// Enough of CUDA to compile a printed kernel as C++ and run it on the processor: a block's threads are threads,
// its blocks run one after another. For tests of small kernels whose only warp operations are shuffles.
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#define TREADLE_NO_DEVICE_BODIES
#define __global__
#define __launch_bounds__(threads)
#define __shared__ static

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
thread_local uint3 threadIdx, blockIdx;

inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }

inline std::barrier<> *treadle_block = nullptr;
inline void treadle_barrier() { treadle_block->arrive_and_wait(); }

// A warp's lanes leave their values here, and meet before and after they read one another's.
struct treadle_lanes {
  explicit treadle_lanes(unsigned lanes) : all(lanes) {}
  std::barrier<> all;
  int bits[32] = {};
};
inline std::deque<treadle_lanes> treadle_warps;
template <typename T> inline T treadle_shuffle_xor(T value, int distance) {
  treadle_lanes &warp = treadle_warps[threadIdx.x / 32];
  const unsigned lane = threadIdx.x % 32;
  warp.bits[lane] = std::bit_cast<int>(value);
  warp.all.arrive_and_wait();
  const T other = std::bit_cast<T>(warp.bits[lane ^ distance]);
  warp.all.arrive_and_wait();
  return other;
}

inline float treadle_exp(float x) { return std::exp(x); }
inline float treadle_log(float x) { return std::log(x); }
inline float treadle_sqrt(float x) { return std::sqrt(x); }
inline float treadle_rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float treadle_tanh(float x) { return std::tanh(x); }
inline float treadle_erf(float x) { return std::erf(x); }
inline float treadle_pow(float x, float y) { return std::pow(x, y); }
inline float treadle_abs(float x) { return std::fabs(x); }
inline float treadle_floor(float x) { return std::floor(x); }
inline float treadle_max(float x, float y) { return x != x || x > y ? x : y; }
inline float treadle_min(float x, float y) { return x != x || x < y ? x : y; }

// Runs a kernel whose parameters are the pointers in `arguments`.
template <typename... P, std::size_t... N>
void treadle_blocks(void (*kernel)(P...), void **arguments, unsigned grid, unsigned thread, std::barrier<> &all,
                    std::index_sequence<N...>) {
  threadIdx.x = thread;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    kernel((P)arguments[N]...);
    all.arrive_and_wait();  // the next block takes over the shared memory
  }
}
template <typename... P>
void treadle_launch(void (*kernel)(P...), void **arguments, unsigned grid, unsigned threads) {
  std::barrier<> all(threads);
  treadle_block = &all;
  treadle_warps.clear();
  for (unsigned first = 0; first < threads; first += 32) treadle_warps.emplace_back(threads - first < 32 ? threads - first : 32);
  std::vector<std::thread> block;
  for (unsigned t = 0; t < threads; ++t)
    block.emplace_back([=, &all] {
      treadle_blocks(kernel, arguments, grid, t, all, std::index_sequence_for<P...>());
    });
  for (auto &thread : block) thread.join();
}
