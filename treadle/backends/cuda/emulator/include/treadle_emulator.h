// CUDA C++ for a CPU's C++ compiler: what stands before the text of a kernel that runs on the emulator.
//
// The text is compiled unchanged behind this header. No header of the C++ library is needed, so that any
// compiler's C front end with `-x c++` does.
#ifndef TREADLE_EMULATOR_H
#define TREADLE_EMULATOR_H

#define TREADLE_NO_DEVICE_BODIES
#define __CUDA_ARCH__ 800
#define __CUDACC__ 1

#include "emulator_language.h"
#include "emulator_vectors.h"
#include "emulator_math.h"
#include "emulator_warp.h"
#include "emulator_atomics.h"
#ifdef TREADLE_EMU_COUNTERS
// What a header's function does is counted at the line that calls it, which only inlined code knows.
#define inline inline __attribute__((always_inline))
#endif
#include "treadle_cuda.h"
#include "treadle_hopper.h"
#include "emulator_wrappers.h"
#include "emulator_hopper.h"
#undef inline
#include "emulator_entry.h"
#if defined(TREADLE_EMU_COUNTERS) && !defined(TREADLE_EMU_CALLS)
#define inline inline __attribute__((always_inline))
#endif

#endif  // TREADLE_EMULATOR_H
