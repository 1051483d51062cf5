// What kernels of compute capability 9.0 may call beside treadle_cuda.h: barriers that count bytes, bulk copies of tiles by
// tensor maps, and products of a warpgroup. Source: PTX ISA 9.0, the sections named below.
//
// Shared memory is given by its address in the block's shared window, as PTX wants it (treadle_shared_address).
#ifndef TREADLE_HOPPER_H
#define TREADLE_HOPPER_H

#include "treadle_cuda.h"

// "Tensors": where a tensor lies, and the box of it that a copy moves; made by the host, and opaque to a kernel.
struct alignas(64) treadle_tensor_map {
  unsigned long long words[16];
};

// "Parallel Synchronization: mbarrier": a barrier of arrivals and of bytes that copies bring.
struct treadle_mbarrier {
  unsigned long long state;
};

// How elements of 16 and 32 bits are multiplied: names of element types for treadle_wgmma.
struct treadle_tf32 {};
struct treadle_f8E4M3FN {};
struct treadle_f8E5M2 {};

// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", matrix descriptors: where a tile begins, the
// bytes from one group of matrices to the next along both dimensions, and the swizzle (0 none, 1 of 128 bytes, 2 of 64,
// 3 of 32).
inline unsigned long long treadle_matrix(unsigned address, int leading, int stride, int swizzle) {
  return (unsigned long long)((address & 0x3ffffu) >> 4) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | (unsigned long long)swizzle << 62;
}

// The same with the start moved by units of 16 bytes: the low word has it, and does not overflow.
inline unsigned long long treadle_matrix_at(unsigned long long matrix, int units) {
  return (matrix & 0xffffffff00000000ull) | ((unsigned)matrix + (unsigned)units);
}

// sums += a * b, or a * b where `keep` is false: 64 rows, N columns, and 32 bytes of the terms. Of each 8 columns a thread
// has 4 sums. A and B are matrix descriptors; TRANSPOSE_A and TRANSPOSE_B say that an operand of 16 bits does not lie along
// the terms but across them. The text of a kernel has the instruction for each shape that it uses. The operands are read,
// and sums written, until a treadle_wgmma_wait has covered the product's group.
template <int N, typename A, typename B, int TRANSPOSE_A, int TRANSPOSE_B, typename SUM>
inline void treadle_wgmma(treadle_vec<SUM, 4> *sums, unsigned long long a, unsigned long long b, bool keep);
// The same with A in registers: what a thread holds of 64 rows, as of 16 rows of treadle_mma for each warp.
template <int N, typename A, typename B, int TRANSPOSE_B, typename SUM>
inline void treadle_wgmma_registers(treadle_vec<SUM, 4> *sums, treadle_vec<unsigned, 4> a, unsigned long long b, bool keep);

// Waits for the lanes of the warp.
inline void treadle_warp_barrier() { __syncwarp(); }

#ifndef TREADLE_NO_DEVICE_BODIES

// The value of a warp's first lane, known to be the same in all of them: what is computed from it takes uniform registers.
inline int treadle_uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
inline unsigned treadle_uniform(unsigned x) { return __shfl_sync(0xffffffffu, x, 0); }

// ---- barriers that count arrivals and bytes -------------------------------------------------------------------

inline void treadle_mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Publishes initialised barriers to copies; a barrier of the block publishes them to its threads.
inline void treadle_mbarrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
inline void treadle_mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives at the barrier at the same address in a block of the cluster.
inline void treadle_mbarrier_arrive_at(unsigned barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank)
      : "memory");
}
// Arrives, and lets the phase wait for so many bytes of copies.
inline void treadle_mbarrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits for the end of the phase of this parity: that of a barrier's first phase is 0.
inline void treadle_mbarrier_wait(unsigned barrier, int parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}
// The same where other blocks of the cluster stored what is waited for.
inline void treadle_mbarrier_wait_cluster(unsigned barrier, int parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

// ---- copies of boxes of a tensor, by one thread ---------------------------------------------------------------

inline void treadle_tensor_map_prefetch(const treadle_tensor_map &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Starts a copy of the box at the given coordinates, the innermost first, to shared memory; elements outside of the tensor
// become 0. It completes at the barrier, by the bytes of the box.
inline void treadle_tensor_load(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(tile),
      "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
inline void treadle_tensor_load(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          tile),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
inline void treadle_tensor_load(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
          tile),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
inline void treadle_tensor_load(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int x, int y, int z, int w,
                                int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(tile),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
      : "memory");
}
// Starts a copy of pixels of images [n, w, c], [n, h, w, c] or [n, d, h, w, c] in the walk of the map, from the one at
// the given coordinates on, each moved by offsets along the spatial dimensions; what then lies outside of the image
// becomes 0, as do pixels behind the last image.
inline void treadle_tensor_load_pixels(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int c, int w, int n,
                                       int by_w) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2], "
      "{%6};" ::"r"(tile),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(n), "h"((unsigned short)by_w)
      : "memory");
}
inline void treadle_tensor_load_pixels(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int c, int w, int h,
                                       int n, int by_w, int by_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2], {%7, %8};" ::"r"(tile),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"((unsigned short)by_w), "h"((unsigned short)by_h)
      : "memory");
}
inline void treadle_tensor_load_pixels(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int c, int w, int h,
                                       int d, int n, int by_w, int by_h, int by_d) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(tile),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "h"((unsigned short)by_w),
      "h"((unsigned short)by_h), "h"((unsigned short)by_d)
      : "memory");
}
// The same to the same address in each block of the cluster whose bit is set; it completes at the barrier of each.
inline void treadle_tensor_load_multicast(unsigned tile, const treadle_tensor_map &map, unsigned barrier, int blocks, int x,
                                          int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5}], [%2], %3;" ::"r"(tile),
      "l"(&map), "r"(barrier), "h"((unsigned short)blocks), "r"(x), "r"(y)
      : "memory");
}
// Starts a copy of a box from shared memory to the tensor, up to its ends; it belongs to the thread's next group.
inline void treadle_tensor_store(const treadle_tensor_map &map, unsigned tile, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(tile), "r"(x),
               "r"(y)
               : "memory");
}
inline void treadle_tensor_store(const treadle_tensor_map &map, unsigned tile, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(tile),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}
inline void treadle_tensor_store(const treadle_tensor_map &map, unsigned tile, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map), "r"(tile),
               "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
inline void treadle_tensor_store(const treadle_tensor_map &map, unsigned tile, int x, int y, int z, int w, int v) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(tile), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
               : "memory");
}
inline void treadle_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most PENDING of the thread's newest groups are under way, or still read shared memory.
template <int PENDING> inline void treadle_bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING> inline void treadle_bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// What the thread wrote to shared memory may be read by copies and products that begin later.
inline void treadle_fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- the warpgroup: 4 warps, of which the first has a number that is a multiple of 4 ---------------------------

// Orders registers that the threads wrote before products that read them.
inline void treadle_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void treadle_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING of the newest groups of products are under way.
template <int PENDING> inline void treadle_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// What reads these sums, and follows, stays behind what is before: a wait says nothing of registers.
template <int COUNT> inline void treadle_wgmma_sums(treadle_vec<float, 4> *sums) {
#pragma unroll
  for (int i = 0; i < COUNT * 4; ++i) asm volatile("" : "+f"(sums[i / 4].v[i % 4]));
}
template <int COUNT> inline void treadle_wgmma_sums(treadle_vec<int, 4> *sums) {
#pragma unroll
  for (int i = 0; i < COUNT * 4; ++i) asm volatile("" : "+r"(sums[i / 4].v[i % 4]));
}
// The assembler moves a wait for products above arithmetic that does not need it, but not above this, which needs x, which is
// not negative: an instruction that never runs.
inline void treadle_before_wait(float x) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 1;\n}" ::"f"(x) : "memory");
}
// The registers of each thread of the warpgroup from here on.
template <int REGISTERS> inline void treadle_registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> inline void treadle_registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
// Meets the other threads of a numbered barrier, or only counts as having come.
inline void treadle_named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
inline void treadle_named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// 4 matrices of 8 x 8 elements of 16 bits, as lanes hold them, to rows of 16 bytes whose addresses they give.
inline void treadle_stmatrix_x4(void *row, treadle_vec<unsigned, 4> x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(treadle_shared_address(row)),
               "r"(x.v[0]), "r"(x.v[1]), "r"(x.v[2]), "r"(x.v[3])
               : "memory");
}

// ---- clusters -------------------------------------------------------------------------------------------------

inline int treadle_cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
inline void treadle_cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The same in two parts, between which a thread does something else. All that those who wait know of another thread is that
// it has started, and the barriers that it has published.
inline void treadle_cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
inline void treadle_cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// Where a block of the cluster has what lies at an address here; bytes further on are as many further on there.
inline unsigned treadle_remote_address(unsigned address, int rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Starts a store to a block of the cluster, which takes its 8 bytes off a barrier of that block when it is there. The block
// has not ended before: it waits for them.
inline void treadle_store_async(unsigned to, unsigned barrier, treadle_vec<float, 2> x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(x.v[0]), "f"(x.v[1]), "r"(barrier)
               : "memory");
}
inline void treadle_store_async(unsigned to, unsigned barrier, treadle_vec<int, 2> x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "r"(x.v[0]), "r"(x.v[1]), "r"(barrier)
               : "memory");
}

// ---- launches that overlap ------------------------------------------------------------------------------------

// The next launch of the stream may begin; wait until all that the launch before wrote is visible.
inline void treadle_grid_done() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
inline void treadle_grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#endif  // TREADLE_NO_DEVICE_BODIES
#endif  // TREADLE_HOPPER_H
