// A CUDA driver whose one device is the emulator: types, results and state that its files share.
//
// All work is queued, and done as late as a device may do it: when somebody waits for it. A kernel that fails
// leaves the context unusable, as on a GPU, until the context has been released and retained again.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Name, number as in cuda.h, and text.
#define FOR_EACH_RESULT(F)                                                              \
  F(SUCCESS, 0, "no error")                                                             \
  F(ERROR_INVALID_VALUE, 1, "invalid argument")                                         \
  F(ERROR_OUT_OF_MEMORY, 2, "out of memory")                                            \
  F(ERROR_NOT_INITIALIZED, 3, "initialization error")                                   \
  F(ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                         \
  F(ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                \
  F(ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                         \
  F(ERROR_INVALID_CONTEXT, 201, "invalid device context")                               \
  F(ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device") \
  F(ERROR_INVALID_HANDLE, 400, "invalid resource handle")                               \
  F(ERROR_NOT_FOUND, 500, "named symbol not found")                                     \
  F(ERROR_NOT_READY, 600, "device not ready")                                           \
  F(ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")             \
  F(ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")      \
  F(ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")               \
  F(ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                            \
  F(ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                            \
  F(ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                             \
  F(ERROR_NOT_SUPPORTED, 801, "operation not supported")                                \
  F(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")

#define DECLARE_RESULT(NAME, NUMBER, TEXT) CUDA_##NAME = NUMBER,
enum CUresult { FOR_EACH_RESULT(DECLARE_RESULT) };
#undef DECLARE_RESULT

using CUdevice = int;
using CUdeviceptr = unsigned long long;

struct Context;

// What was recorded on a stream, to be done again and again.
struct Graph {
  std::vector<std::function<CUresult()>> work;
};

struct Stream {
  std::unique_ptr<Graph> recording;  // null unless the stream is being captured
};

struct Event {
  unsigned recorded = 0;  // how often it was queued
  unsigned reached = 0;
  double seconds = 0;
};

struct Module;

struct Function {
  Module *module;
  std::string name;
  int max_dynamic_shared;
};

struct Module {
  void *library;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

// Memory of the device: pages of this process between guards.
struct Allocation {
  uint64_t bytes;
  void *mapping;
  size_t mapped;
};

struct Operation {
  const Stream *stream;  // null: the default stream
  std::function<CUresult()> run;
};

struct Device {
  std::mutex mutex;
  bool initialised = false;
  unsigned retained = 0;           // of the primary context
  CUresult failure = CUDA_SUCCESS; // of a kernel; every later call returns it
  // The environment's wishes, read by cuInit.
  uint64_t capacity = 0;           // bytes
  int major = 0, minor = 0, count = 0;
  double limit = 0;                // seconds that a kernel may take
  // What lives in the context.
  uint64_t used = 0;
  std::map<CUdeviceptr, Allocation> allocations;
  std::map<Stream *, std::unique_ptr<Stream>> streams;
  std::map<Event *, std::shared_ptr<Event>> events;
  std::map<Graph *, std::unique_ptr<Graph>> graphs;  // instances are copies among them
  std::map<Module *, std::unique_ptr<Module>> modules;
  std::set<Function *> functions;
  std::deque<Operation> queue;
};

Device &device();

// Why no call can be made on this thread now; the device is locked.
CUresult refusal();

// A driver call that needs a current context.
template <typename F> CUresult in_context(F body) {
  std::lock_guard<std::mutex> lock(device().mutex);
  CUresult refused = refusal();
  return refused == CUDA_SUCCESS ? body() : refused;
}

// The most dynamic shared memory that a block may be allowed, in bytes.
int shared_optin();

bool valid(const Stream *stream);

// Queues work, or records it where the stream is being captured.
void submit(Stream *stream, std::function<CUresult()> run);

// Does the oldest piece of queued work; false where there is none.
bool advance();

// Does all queued work; the failure, if there was one.
CUresult drain();

// The allocation that holds `bytes` bytes from `address`, or null.
const Allocation *find_allocation(CUdeviceptr address, uint64_t bytes);

void free_all_memory();
void unload_all_modules();
