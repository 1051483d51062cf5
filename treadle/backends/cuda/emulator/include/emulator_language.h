// Qualifiers, built-in variables, barriers, and loads with a hint.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define TREADLE_EMU_INLINE inline __attribute__((always_inline))

// A variable in shared memory belongs to the core that runs a block; a block runs on one core.
#define __shared__ thread_local
#define __global__ __attribute__((visibility("default"), noinline))
#if defined(TREADLE_EMU_COUNTERS) && !defined(TREADLE_EMU_CALLS)
// Structures that are handed over straight from memory are seen only where the function is part of its caller.
#define __device__ __attribute__((always_inline))
#else
#define __device__
#endif
#define __host__
#define __constant__
#define __forceinline__ TREADLE_EMU_INLINE
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(N) __attribute__((aligned(N)))
// Between a qualifier and a type only this spelling is taken by every compiler.
#define alignas(N) __attribute__((aligned(N)))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern "C" {
uint3 treadle_emu_thread() __attribute__((const));
uint3 treadle_emu_block() __attribute__((const));
uint3 treadle_emu_block_dim() __attribute__((const));
uint3 treadle_emu_grid_dim() __attribute__((const));
void treadle_emu_barrier(uint32_t line);
uint32_t treadle_emu_ballot(uint32_t mask, int32_t predicate);
void treadle_emu_fence(uint32_t scope);
}

#define threadIdx (treadle_emu_thread())
#define blockIdx (treadle_emu_block())
#define blockDim (treadle_emu_block_dim())
#define gridDim (treadle_emu_grid_dim())
#define warpSize 32

// A macro, so that a barrier knows its line, and no compiler makes two barriers of two lines one.
#define __syncthreads() treadle_emu_barrier(__LINE__)
TREADLE_EMU_INLINE void __threadfence() { treadle_emu_fence(1); }
TREADLE_EMU_INLINE void __threadfence_block() { treadle_emu_fence(0); }
TREADLE_EMU_INLINE void __threadfence_system() { treadle_emu_fence(1); }
[[noreturn]] TREADLE_EMU_INLINE void __trap() { __builtin_trap(); }

template <typename T> TREADLE_EMU_INLINE T __ldg(const T *address) { return *address; }
template <typename T> TREADLE_EMU_INLINE T __ldcg(const T *address) { return *address; }
template <typename T> TREADLE_EMU_INLINE T __ldca(const T *address) { return *address; }
template <typename T> TREADLE_EMU_INLINE T __ldcs(const T *address) { return *address; }
template <typename T> TREADLE_EMU_INLINE void __stcg(T *address, T value) { *address = value; }
template <typename T> TREADLE_EMU_INLINE void __stcs(T *address, T value) { *address = value; }

TREADLE_EMU_INLINE size_t __cvta_generic_to_shared(const void *pointer) { return (size_t)pointer; }
