// The device, what is known about it, and its primary context.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "driver.h"

namespace {

thread_local std::vector<Context *> stack;

double wish(const char *name, double otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtod(text, nullptr) : otherwise;
}

bool is_device(CUdevice number) { return number >= 0 && number < driver().count; }

int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Numbers as in cuda.h.
const std::map<int, int> ATTRIBUTES = {
    {1, 1024},                             // threads of a block
    {2, 1024}, {3, 1024}, {4, 64},         // block in x, y, z
    {5, 2147483647}, {6, 65535}, {7, 65535},  // grid
    {8, 48 * 1024},                        // shared memory of a block without a wish for more
    {10, 32},                              // warp size
    {12, 65536},                           // registers of a block
    {38, 1 << 16},                         // bytes of L2
    {39, 2048},                            // threads of a multiprocessor
};

CUresult in_device(CUdevice number, const std::function<CUresult()> &body) {
  std::lock_guard<std::mutex> lock(driver().mutex);
  if (!driver().initialised) return CUDA_ERROR_NOT_INITIALIZED;
  return is_device(number) ? body() : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

Driver &driver() {
  static Driver *only = new Driver;  // never destroyed: others' destructors may still call
  return *only;
}

Device &device() { return *stack.back()->device; }

CUresult refusal() {
  if (!driver().initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!device().retained || device().destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return device().failure;
}

int shared_optin() {
  int capability = 10 * driver().major + driver().minor;
  if (capability == 80 || capability == 87) return 163 * 1024;
  return capability == 86 || capability == 89 || capability >= 120 ? 99 * 1024 : 227 * 1024;
}

// TREADLE_FAKE_GPU_DEVICES, _MEMORY (bytes), _CAPABILITY (90 for 9.0) and _LIMIT (seconds a kernel).
EXPORT CUresult cuInit(unsigned) {
  std::lock_guard<std::mutex> lock(driver().mutex);
  Driver &d = driver();
  d.count = std::min((int)wish("TREADLE_FAKE_GPU_DEVICES", 1), MOST_DEVICES);
  if (!d.count) return CUDA_ERROR_NO_DEVICE;
  if (d.initialised) return CUDA_SUCCESS;
  int capability = (int)wish("TREADLE_FAKE_GPU_CAPABILITY", 80);
  d.major = capability / 10;
  d.minor = capability % 10;
  d.capacity = (uint64_t)wish("TREADLE_FAKE_GPU_MEMORY", 1 << 30);
  d.limit = wish("TREADLE_FAKE_GPU_LIMIT", 60);
  for (int n = 0; n < MOST_DEVICES; ++n) d.devices[n].number = n;
  d.initialised = true;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
  std::lock_guard<std::mutex> lock(driver().mutex);
  *count = driver().count;
  return driver().initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int number) {
  return in_device(number, [&] { return *out = number, CUDA_SUCCESS; });
}

EXPORT CUresult cuDeviceGetName(char *out, int size, CUdevice number) {
  return in_device(number, [&] { return snprintf(out, (size_t)size, "Treadle emulator"), CUDA_SUCCESS; });
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice number) {
  return in_device(number, [&] { return *bytes = driver().capacity, CUDA_SUCCESS; });
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice number) {
  return in_device(number, [&] { return *major = driver().major, *minor = driver().minor, CUDA_SUCCESS; });
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice number) {
  return in_device(number, [&] {
    auto found = ATTRIBUTES.find(attribute);
    if (found != ATTRIBUTES.end()) return *value = found->second, CUDA_SUCCESS;
    switch (attribute) {
      case 16: return *value = cores(), CUDA_SUCCESS;  // multiprocessors
      case 75: return *value = driver().major, CUDA_SUCCESS;
      case 76: return *value = driver().minor, CUDA_SUCCESS;
      case 97: return *value = shared_optin(), CUDA_SUCCESS;
      default: return CUDA_ERROR_NOT_SUPPORTED;
    }
  });
}

namespace {

// Destroys all that lives in the context.
void clear(Device &d) {
  stack.push_back(&d.primary);
  if (d.failure == CUDA_SUCCESS) drain();
  drop_all_work();
  free_all_memory();
  unload_all_modules();
  stack.pop_back();
  d.streams.clear();
  d.orphans.clear();
  d.events.clear();
  d.graphs.clear();
  d.failure = CUDA_SUCCESS;
}

}  // namespace

EXPORT CUresult cuDevicePrimaryCtxRetain(Context **out, CUdevice number) {
  return in_device(number, [&] {
    Device &d = driver().devices[number];
    if (!d.retained++) d.destroyed = false;
    *out = &d.primary;
    return CUDA_SUCCESS;
  });
}

// The last release destroys all that lives in the context, its failure included.
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number) {
  return in_device(number, [&] {
    Device &d = driver().devices[number];
    if (!d.retained) return CUDA_ERROR_INVALID_CONTEXT;
    if (!--d.retained) clear(d);
    return CUDA_SUCCESS;
  });
}

// Whoever holds the context finds it destroyed, until all have released it.
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice number) {
  return in_device(number, [&] {
    Device &d = driver().devices[number];
    clear(d);
    d.destroyed = d.retained;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuCtxPushCurrent_v2(Context *context) {
  std::lock_guard<std::mutex> lock(driver().mutex);
  for (Device &each : driver().devices) {
    if (context != &each.primary || !each.retained) continue;
    stack.push_back(context);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPopCurrent_v2(Context **out) {
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *out) {
  return in_context([&] { return *out = device().number, CUDA_SUCCESS; });
}

EXPORT CUresult cuCtxGetApiVersion(Context *, unsigned *version) {
  return in_context([&] { return *version = 3020, CUDA_SUCCESS; });
}

EXPORT CUresult cuCtxSynchronize() { return outside_capture(drain); }

// For tests: how often a function was called that needs a context, and the number that counts all of them anew.
EXPORT unsigned treadle_fake_calls(const char *function) {
  std::lock_guard<std::mutex> lock(driver().mutex);
  auto found = driver().calls.find(function);
  return found == driver().calls.end() ? 0 : found->second;
}

EXPORT void treadle_fake_forget_calls() {
  std::lock_guard<std::mutex> lock(driver().mutex);
  driver().calls.clear();
}
