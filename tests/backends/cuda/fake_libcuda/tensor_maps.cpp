// Tensor maps: what the driver checks, and the bytes that the emulator's copies of boxes read.
#include <string.h>

#include "driver.h"
#include "hopper.h"

namespace {

// By CUtensorMapDataType.
constexpr int ELEMENT_BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
// By CUtensorMapSwizzle: none, 32, 64 and 128 bytes; as matrix descriptors number them.
constexpr uint32_t SPANS[] = {0, 32, 64, 128};
constexpr uint8_t SWIZZLES[] = {0, 3, 2, 1};

// By rank of a map of pixels.
constexpr int CORNER_BITS[] = {0, 0, 0, 16, 8, 5};

// What a map of either kind says of its tensor; false where the driver refuses it.
bool describe(emu::TensorMap &made, const void *map, int type, uint32_t rank, const void *address,
              const uint64_t *extents, const uint64_t *strides, int interleave, int swizzle, int promotion, int fill) {
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || type < 0 || type > 12 || rank < 1 || rank > 5) return false;
  if (interleave || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3 || fill) return false;
  for (uint32_t i = 0; i < rank; ++i) {
    if (!extents[i] || extents[i] > 1ull << 32) return false;
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)) return false;
    made.extents[i] = extents[i];
    if (i) made.strides[i - 1] = strides[i - 1];
  }
  made.base = (uint64_t)(uintptr_t)address;
  made.element_bytes = (uint8_t)ELEMENT_BYTES[type];
  made.rank = (uint8_t)rank;
  made.swizzle = SWIZZLES[swizzle];
  made.made = emu::TENSOR_MAP_MADE;
  made.data_type = (uint32_t)type;
  return true;
}

// Whether copies can have rows of so many elements.
bool has_rows(const emu::TensorMap &made, uint32_t elements, int swizzle) {
  const uint32_t bytes = elements * made.element_bytes;
  return elements && elements <= 256 && bytes % 16 == 0 && (!swizzle || bytes <= SPANS[swizzle]);
}

}  // namespace

EXPORT CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                                       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                       int interleave, int swizzle, int promotion, int fill) {
  emu::TensorMap made = {};
  if (!describe(made, map, type, rank, address, extents, strides, interleave, swizzle, promotion, fill) ||
      !has_rows(made, box[0], swizzle)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (uint32_t i = 0; i < rank; ++i) {
    if (!box[i] || box[i] > 256 || element_strides[i] != 1) return CUDA_ERROR_INVALID_VALUE;
    made.box[i] = box[i];
  }
  memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                                        const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                                        uint32_t pixels, const uint32_t *element_strides, int interleave, int swizzle,
                                        int promotion, int fill) {
  emu::TensorMap made = {};
  if (rank < 3 || !describe(made, map, type, rank, address, extents, strides, interleave, swizzle, promotion, fill) ||
      !has_rows(made, channels, swizzle) || !pixels || pixels > 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  made.box[0] = channels;
  made.box[1] = pixels;
  const int half = 1 << (CORNER_BITS[rank] - 1);
  for (uint32_t i = 0; i < rank - 2; ++i) {
    const uint32_t step = element_strides[i + 1];
    if (lower[i] < -half || lower[i] >= half || upper[i] < -half || upper[i] >= half || !step || step > 8 ||
        (int64_t)extents[i + 1] + upper[i] <= lower[i]) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    made.lower[i] = (int16_t)lower[i];
    made.upper[i] = (int16_t)upper[i];
    made.steps[i] = (uint8_t)step;
  }
  memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}
