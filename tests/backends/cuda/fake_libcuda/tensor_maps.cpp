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

}  // namespace

EXPORT CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                                       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                       int interleave, int swizzle, int promotion, int fill) {
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || type < 0 || type > 12 || rank < 1 || rank > 5) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (interleave || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3 || fill) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint32_t element = ELEMENT_BYTES[type];
  emu::TensorMap made = {};
  for (uint32_t i = 0; i < rank; ++i) {
    if (!extents[i] || extents[i] > 1ull << 32 || !box[i] || box[i] > 256 || element_strides[i] != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)) return CUDA_ERROR_INVALID_VALUE;
    made.extents[i] = extents[i];
    made.box[i] = box[i];
    if (i) made.strides[i - 1] = strides[i - 1];
  }
  if (box[0] * element % 16 || (swizzle && box[0] * element > SPANS[swizzle])) return CUDA_ERROR_INVALID_VALUE;
  made.base = (uint64_t)(uintptr_t)address;
  made.element_bytes = (uint8_t)element;
  made.rank = (uint8_t)rank;
  made.swizzle = SWIZZLES[swizzle];
  made.made = emu::TENSOR_MAP_MADE;
  made.data_type = (uint32_t)type;
  memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}
