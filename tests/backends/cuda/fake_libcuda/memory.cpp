// Device memory and copies. Each allocation ends where inaccessible pages begin, so that a kernel that runs
// past it faults.
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

namespace {

constexpr uint64_t ALIGNMENT = 256, PAGE = 4096, GUARD = 256 * 1024;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

void *host(CUdeviceptr address) { return (void *)(uintptr_t)address; }

CUresult enqueue(Stream *handle, bool wait, Work run) {
  auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (wait && forbidden_by_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  submit(*stream, std::move(run));
  return wait ? finish(stream) : CUDA_SUCCESS;
}

template <typename T> CUresult set(CUdeviceptr target, T value, size_t count, Stream *stream, bool wait) {
  return in_context([&] {
    if (!find_allocation(target, count * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream, wait, [=] {
      T *first = (T *)host(target);
      for (size_t i = 0; i < count; ++i) first[i] = value;
      return CUDA_SUCCESS;
    });
  });
}

CUresult copy(void *target, const void *source, size_t bytes, Stream *stream, bool wait) {
  return enqueue(stream, wait, [=] { return memmove(target, source, bytes), CUDA_SUCCESS; });
}

// A copy whose ends on the device lie in allocations; 0 stands for the end on the host.
CUresult checked(void *target, CUdeviceptr device_target, const void *source, CUdeviceptr device_source, size_t bytes,
                 Stream *stream, bool wait, const char *kind) {
  return in_context([&] {
    if (device_target && !find_allocation(device_target, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (device_source && !find_allocation(device_source, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return copy(target, source, bytes, stream, wait);
  }, kind);
}

CUresult to_device(CUdeviceptr target, const void *source, size_t bytes, Stream *stream, bool wait) {
  return checked(host(target), target, source, 0, bytes, stream, wait, "HtoD");
}

CUresult to_host(void *target, CUdeviceptr source, size_t bytes, Stream *stream, bool wait) {
  return checked(target, 0, host(source), source, bytes, stream, wait, "DtoH");
}

CUresult on_device(CUdeviceptr target, CUdeviceptr source, size_t bytes, Stream *stream, bool wait) {
  return checked(host(target), target, host(source), source, bytes, stream, wait, "DtoD");
}

// CUDA_MEMCPY2D of cuda.h.
struct Copy2D {
  size_t source_x, source_y;
  int source_type;
  const void *source_host;
  CUdeviceptr source;
  void *source_array;
  size_t source_pitch;
  size_t target_x, target_y;
  int target_type;
  void *target_host;
  CUdeviceptr target;
  void *target_array;
  size_t target_pitch;
  size_t width, height;
};

enum { MEMORY_DEVICE = 2 };

}  // namespace

const Allocation *find_allocation(CUdeviceptr address, uint64_t bytes) {
  auto next = device().allocations.upper_bound(address);
  if (next == device().allocations.begin()) return nullptr;
  auto &[start, allocation] = *--next;
  return address - start <= allocation.bytes && bytes <= allocation.bytes - (address - start) ? &allocation : nullptr;
}

void free_all_memory() {
  for (auto &[start, allocation] : device().allocations) munmap(allocation.mapping, allocation.mapped);
  device().allocations.clear();
  for (auto &[start, bytes] : device().pinned) munmap(start, bytes);
  device().pinned.clear();
  device().used = 0;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  return outside_capture([&] {
    Device &d = device();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > driver().capacity || round_up(bytes, ALIGNMENT) > driver().capacity - d.used) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = round_up(bytes, ALIGNMENT), pages = round_up(rounded, PAGE);
    size_t mapped = pages + 2 * GUARD;
    void *mapping = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    uint8_t *first = (uint8_t *)mapping + GUARD;
    mprotect(first, pages, PROT_READ | PROT_WRITE);
    memset(first, 0xff, pages);  // unlikely numbers, as memory that nobody has written
    *out = (CUdeviceptr)(uintptr_t)(first + pages - rounded);
    d.allocations[*out] = {bytes, mapping, mapped};
    d.used += rounded;
    return CUDA_SUCCESS;
  });
}

// Waits for queued work, as a GPU's does.
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  return outside_capture([&] {
    Device &d = device();
    auto found = d.allocations.find(address);
    if (found == d.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = drain();
    munmap(found->second.mapping, found->second.mapped);
    d.used -= round_up(found->second.bytes, ALIGNMENT);
    d.allocations.erase(found);
    return result;
  });
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  return in_context([&] {
    *total = driver().capacity;
    *available = driver().capacity - device().used;
    return CUDA_SUCCESS;
  });
}

// Memory of the host that the device copies from and to: the pages are gone once it is freed, so that a copy of work
// that is still queued would fault.
EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned) {
  return outside_capture([&] {
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    uint64_t pinned = 0, pages = round_up(bytes, PAGE);
    for (auto &[start, size] : device().pinned) pinned += size;
    if (pages > driver().capacity || pinned > driver().capacity - pages) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*out == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*out, 0xff, pages);
    device().pinned[*out] = pages;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuMemFreeHost(void *address) {
  return outside_capture([&] {
    auto found = device().pinned.find(address);
    if (found == device().pinned.end()) return CUDA_ERROR_INVALID_VALUE;
    munmap(address, found->second);
    device().pinned.erase(found);
    return CUDA_SUCCESS;
  });
}

// The number of the device on which an address lies.
EXPORT CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address) {
  return in_context([&] {
    if (attribute != 9) return CUDA_ERROR_NOT_SUPPORTED;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    for (Device &each : driver().devices) {
      auto next = each.allocations.upper_bound(address);
      if (next == each.allocations.begin()) continue;
      auto &[start, allocation] = *--next;
      if (address - start < allocation.bytes) return *(int *)out = each.number, CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  });
}

EXPORT CUresult cuMemcpy2DAsync_v2(const Copy2D *given, Stream *stream) {
  return in_context([&] {
    if (given->source_type != MEMORY_DEVICE || given->target_type != MEMORY_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    Copy2D c = *given;
    c.source += c.source_y * c.source_pitch + c.source_x;
    c.target += c.target_y * c.target_pitch + c.target_x;
    if (c.width > c.source_pitch || c.width > c.target_pitch) return CUDA_ERROR_INVALID_VALUE;
    if (!c.width || !c.height) return CUDA_SUCCESS;
    size_t rows = c.height - 1;
    if (!find_allocation(c.source, rows * c.source_pitch + c.width)) return CUDA_ERROR_INVALID_VALUE;
    if (!find_allocation(c.target, rows * c.target_pitch + c.width)) return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream, false, [c] {
      for (size_t row = 0; row < c.height; ++row) {
        memcpy(host(c.target + row * c.target_pitch), host(c.source + row * c.source_pitch), c.width);
      }
      return CUDA_SUCCESS;
    });
  });
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void *source, size_t bytes) {
  return to_device(target, source, bytes, nullptr, true);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, Stream *stream) {
  return to_device(target, source, bytes, stream, false);
}
EXPORT CUresult cuMemcpyDtoH_v2(void *target, CUdeviceptr source, size_t bytes) {
  return to_host(target, source, bytes, nullptr, true);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, Stream *stream) {
  return to_host(target, source, bytes, stream, false);
}
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return on_device(target, source, bytes, nullptr, true);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, Stream *stream) {
  return on_device(target, source, bytes, stream, false);
}

#define MEMSET(NAME, ASYNC, TYPE)                                                              \
  EXPORT CUresult NAME(CUdeviceptr target, TYPE value, size_t count) {                         \
    return set<TYPE>(target, value, count, nullptr, true);                                     \
  }                                                                                            \
  EXPORT CUresult ASYNC(CUdeviceptr target, TYPE value, size_t count, Stream *stream) {        \
    return set<TYPE>(target, value, count, stream, false);                                     \
  }
MEMSET(cuMemsetD8_v2, cuMemsetD8Async, uint8_t)
MEMSET(cuMemsetD16_v2, cuMemsetD16Async, uint16_t)
MEMSET(cuMemsetD32_v2, cuMemsetD32Async, uint32_t)
