// A CUDA driver whose devices are the emulator: types, results and state that its files share.
//
// Work is queued on its stream, and done as late as a device may do it: when somebody waits for that stream, or for an
// event behind it. Streams are ordered by events and by the legacy default stream alone, so that a missing wait shows.
// A kernel that fails leaves the context unusable, as on a GPU, until the context has been released and retained again.
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
  F(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing") \
  F(ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
  F(ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream")

#define DECLARE_RESULT(NAME, NUMBER, TEXT) CUDA_##NAME = NUMBER,
enum CUresult { FOR_EACH_RESULT(DECLARE_RESULT) };
#undef DECLARE_RESULT

using CUdevice = int;
using CUdeviceptr = unsigned long long;

struct Device;

// The primary context of a device; there are no others.
struct Context {
  Device *device;
};

using Work = std::function<CUresult()>;
using Values = std::vector<std::vector<uint8_t>>;

struct Function;

struct Extents {
  unsigned grid[3], block[3];
};

// A launch; its values are copied when it is queued.
struct KernelNode {
  Function *function;
  Extents extents;
  unsigned dynamic_bytes;
  Values values;
};

// A step of a graph: a launch, or other work.
struct Node {
  std::shared_ptr<KernelNode> kernel;  // null for other work
  Work work;
};

// What was recorded on a stream, to be done again and again. An instance has launches of its own.
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  std::map<const Node *, std::shared_ptr<KernelNode>> instances;  // of an instance: by the nodes of its graph
};

struct Operation {
  uint64_t number;  // among those of all streams, in the order of the calls
  Work run;
};

struct Stream {
  bool blocking = true;              // ordered with the legacy default stream
  std::deque<Operation> queue;
  std::unique_ptr<Graph> recording;  // null unless the stream is being captured
  bool invalidated = false;
  Node *last = nullptr;              // what was recorded last
};

struct Event {
  std::shared_ptr<Stream> stream;  // on which it was recorded last, null before
  uint64_t number = 0;             // of that operation
  unsigned recorded = 0;           // how often it was queued
  unsigned reached = 0;
  double seconds = 0;
  bool captured = false;
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

struct Device {
  int number = 0;
  Context primary{this};
  unsigned retained = 0;           // of the primary context
  bool destroyed = false;          // by a reset
  CUresult failure = CUDA_SUCCESS; // of a kernel; every later call returns it
  // What lives in the context.
  uint64_t used = 0;
  std::map<CUdeviceptr, Allocation> allocations;
  std::map<void *, size_t> pinned;
  std::map<Stream *, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> orphans;  // destroyed, with work that is still to be done
  std::shared_ptr<Stream> legacy = std::make_shared<Stream>();
  std::map<Event *, std::shared_ptr<Event>> events;
  std::map<Graph *, std::shared_ptr<Graph>> graphs;
  std::map<Module *, std::unique_ptr<Module>> modules;
  std::set<Function *> functions;
};

constexpr int MOST_DEVICES = 4;

struct Driver {
  std::mutex mutex;
  bool initialised = false;
  // The environment's wishes, read by cuInit.
  uint64_t capacity = 0;  // bytes
  int major = 0, minor = 0, count = 0;
  double limit = 0;       // seconds that a kernel may take
  uint64_t operations = 0;
  std::map<std::string, unsigned> calls;  // how often each function was called that needs a context
  Device devices[MOST_DEVICES];
};

Driver &driver();

// That of the current context.
Device &device();

// Why no call can be made on this thread now; the driver is locked.
CUresult refusal();

// A driver call that needs a current context; counted by the name of the function that makes it.
template <typename F> CUresult in_context(F body, const char *caller = __builtin_FUNCTION()) {
  std::lock_guard<std::mutex> lock(driver().mutex);
  driver().calls[caller]++;
  CUresult refused = refusal();
  return refused == CUDA_SUCCESS ? body() : refused;
}

// As in_context, for a call that a capture of this thread forbids: it invalidates the capture.
bool forbidden_by_capture();
template <typename F> CUresult outside_capture(F body, const char *caller = __builtin_FUNCTION()) {
  return in_context([&] { return forbidden_by_capture() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : body(); }, caller);
}

// The most dynamic shared memory that a block may be allowed, in bytes.
int shared_optin();

// The stream of a handle, which may be that of a default stream; null where the context has no such stream.
std::shared_ptr<Stream> find_stream(Stream *handle);

// Queues work, or records it where the stream is being captured.
void submit(Stream &stream, Work run);
void submit(Stream &stream, std::shared_ptr<KernelNode> kernel);

// Does the work of one stream, with what it waits for; the failure, if there was one.
CUresult finish(const std::shared_ptr<Stream> &stream);

// Does all queued work of the device; the failure, if there was one.
CUresult drain();
void drop_all_work();

// Runs a kernel, and whether a launch can be made of these parts.
CUresult run(const KernelNode &kernel);
CUresult make_kernel(Function *function, const Extents &extents, unsigned dynamic_bytes, void **kernel_parameters,
                     void **extra, KernelNode &made);

// The allocation that holds `bytes` bytes from `address`, or null.
const Allocation *find_allocation(CUdeviceptr address, uint64_t bytes);

void free_all_memory();
void unload_all_modules();
