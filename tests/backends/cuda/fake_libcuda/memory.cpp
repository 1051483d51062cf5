// Device memory and copies. Each allocation ends where inaccessible pages begin, so that a kernel that runs
// past it faults.
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

namespace {

constexpr uint64_t ALIGNMENT = 256, PAGE = 4096, GUARD = 256 * 1024;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

void *host(CUdeviceptr address) { return (void *)(uintptr_t)address; }

CUresult enqueue(Stream *stream, bool wait, std::function<CUresult()> run) {
  if (!valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
  submit(stream, std::move(run));
  return wait ? drain() : CUDA_SUCCESS;
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

CUresult to_device(CUdeviceptr target, const void *source, size_t bytes, Stream *stream, bool wait) {
  return in_context([&] {
    if (!find_allocation(target, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return copy(host(target), source, bytes, stream, wait);
  });
}

CUresult to_host(void *target, CUdeviceptr source, size_t bytes, Stream *stream, bool wait) {
  return in_context([&] {
    if (!find_allocation(source, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return copy(target, host(source), bytes, stream, wait);
  });
}

CUresult on_device(CUdeviceptr target, CUdeviceptr source, size_t bytes, Stream *stream, bool wait) {
  return in_context([&] {
    if (!find_allocation(target, bytes) || !find_allocation(source, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return copy(host(target), host(source), bytes, stream, wait);
  });
}

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
  device().used = 0;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  return in_context([&] {
    Device &d = device();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > d.capacity || round_up(bytes, ALIGNMENT) > d.capacity - d.used) return CUDA_ERROR_OUT_OF_MEMORY;
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
  return in_context([&] {
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
    *total = device().capacity;
    *available = device().capacity - device().used;
    return CUDA_SUCCESS;
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
