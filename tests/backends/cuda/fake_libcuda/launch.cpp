// Launches: arguments copied at the call, the kernel run by the emulator's runtime when the queue comes to it.
#include <dlfcn.h>
#include <string.h>

#include <thread>
#include <vector>

#include "abi.h"
#include "driver.h"

namespace {

enum { LAUNCH_END = 0, LAUNCH_BUFFER = 1, LAUNCH_BUFFER_SIZE = 2 };

constexpr uint32_t TENSOR_MAP_KIND = 6;  // as emulator_entry.h numbers it

// As the emulator's entry header describes a parameter.
struct Parameter {
  uint32_t pointer, constant, kind, bytes;
  size_t size() const { return pointer ? sizeof(void *) : bytes; }
  // Tensor maps are aligned to 64 bytes, scalars to their size; a structure is taken to be aligned as its size allows.
  size_t alignment() const { return kind == TENSOR_MAP_KIND ? 64 : size() & -size() & 15 ? size() & -size() : 16; }
};

bool within(const unsigned (&extents)[3], const unsigned (&limits)[3]) {
  for (int i = 0; i < 3; ++i) {
    if (!extents[i] || extents[i] > limits[i]) return false;
  }
  return true;
}

bool block_fits(const unsigned (&block)[3]) {
  return within(block, {1024, 1024, 64}) && (uint64_t)block[0] * block[1] * block[2] <= emu::MAX_THREADS;
}

bool grid_fits(const unsigned (&grid)[3]) { return within(grid, {0x7fffffff, 0xffff, 0xffff}); }

std::string symbol(const char *prefix, const Function &function) { return prefix + function.name; }

// Blocks of a cluster, as the kernel's text says.
void read_cluster(const Function &function, uint32_t (&cluster)[3]) {
  const auto *said = (const uint32_t *)dlsym(function.module->library, symbol("treadle_emu_cluster_", function).c_str());
  for (int i = 0; i < 3; ++i) cluster[i] = said ? said[i] : 1;
}

std::vector<Parameter> parameters(const Function &function) {
  auto describe = (uint32_t(*)(Parameter *))dlsym(
      function.module->library, symbol("treadle_emu_parameters_", function).c_str());
  std::vector<Parameter> found(describe(nullptr));
  describe(found.data());
  return found;
}

bool unpack(const std::vector<Parameter> &wanted, void **extra, Values &values) {
  const uint8_t *buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != (void *)LAUNCH_END; extra += 2) {
    if (*extra == (void *)LAUNCH_BUFFER) buffer = (const uint8_t *)extra[1];
    if (*extra == (void *)LAUNCH_BUFFER_SIZE) bytes = *(const size_t *)extra[1];
  }
  size_t place = 0;
  for (const Parameter &each : wanted) {
    place = (place + each.alignment() - 1) / each.alignment() * each.alignment();
    if (place + each.size() > bytes) return false;
    values.emplace_back(buffer + place, buffer + place + each.size());
    place += each.size();
  }
  return place == bytes;
}

CUresult result_of(const emu::Request &request) {
  switch (request.outcome) {
    case emu::FINISHED: return CUDA_SUCCESS;
    case emu::OUT_OF_TIME: return CUDA_ERROR_LAUNCH_TIMEOUT;
    case emu::OUT_OF_MEMORY: return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    case emu::STACK_OVERFLOW: return CUDA_ERROR_HARDWARE_STACK_ERROR;
    default: break;
  }
  for (uint32_t i = 0; i < request.num_findings; ++i) {
    if (request.findings[i].what == emu::BOUNDS_WILD) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_ERROR_LAUNCH_FAILED;
}

}  // namespace

// Pointers are addresses of this process already, so the runtime is told of no buffers. Of shared variables it is told
// those that the printer makes, in which tiles lie that copies of boxes and products of warpgroups find by address.
CUresult run(const KernelNode &kernel) {
  const Function &function = *kernel.function;
  Values values = kernel.values;  // a kernel may write into its parameters
  void *library = function.module->library;
  std::vector<void *> arguments;
  for (auto &value : values) arguments.push_back(value.data());
  arguments.push_back(nullptr);
  std::vector<emu::Finding> findings(emu::MAX_FINDINGS);
  std::vector<emu::Place> places(emu::MAX_THREADS);
  emu::Request request = {};
  request.entry = (void (*)(void **))dlsym(library, symbol("treadle_emu_enter_", function).c_str());
  request.anchor = (char *(*)())dlsym(library, "treadle_emu_anchor");
  request.arguments = arguments.data();
  memcpy(request.grid, kernel.extents.grid, sizeof request.grid);
  memcpy(request.block, kernel.extents.block, sizeof request.block);
  read_cluster(function, request.cluster);
  request.dynamic_bytes = kernel.dynamic_bytes;
  char *dynamic = (char *)dlsym(library, "treadle_dynamic");
  emu::SharedVariable variable = {dynamic ? dynamic - request.anchor() : 0, kernel.dynamic_bytes};
  request.variables = &variable;
  request.num_variables = dynamic && kernel.dynamic_bytes ? 1 : 0;
  request.workers = std::thread::hardware_concurrency();
  request.limit = driver().limit;
  request.findings = findings.data();
  request.places = places.data();
  ((void (*)(emu::Request *))dlsym(library, "treadle_emu_launch"))(&request);
  return result_of(request);
}

CUresult make_kernel(Function *function, const Extents &extents, unsigned dynamic_bytes, void **kernel_parameters,
                     void **extra, KernelNode &made) {
  if (!device().functions.count(function)) return CUDA_ERROR_INVALID_HANDLE;
  if (!grid_fits(extents.grid) || !block_fits(extents.block)) return CUDA_ERROR_INVALID_VALUE;
  if ((int64_t)dynamic_bytes > function->max_dynamic_shared) return CUDA_ERROR_INVALID_VALUE;
  uint32_t cluster[3];
  read_cluster(*function, cluster);
  for (int i = 0; i < 3; ++i) {
    if (extents.grid[i] % cluster[i]) return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<Parameter> wanted = parameters(*function);
  Values values;
  if (kernel_parameters && extra) return CUDA_ERROR_INVALID_VALUE;
  if (extra && !unpack(wanted, extra, values)) return CUDA_ERROR_INVALID_VALUE;
  if (!extra && !kernel_parameters && !wanted.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; !extra && i < wanted.size(); ++i) {
    const uint8_t *value = (const uint8_t *)kernel_parameters[i];
    values.emplace_back(value, value + wanted[i].size());
  }
  made = {function, extents, dynamic_bytes, std::move(values)};
  return CUDA_SUCCESS;
}

// pycuda calls it before a prepared launch, which names the block once more.
EXPORT CUresult cuFuncSetBlockShape(Function *function, int x, int y, int z) {
  return in_context([&] {
    if (!device().functions.count(function)) return CUDA_ERROR_INVALID_HANDLE;
    return block_fits({(unsigned)x, (unsigned)y, (unsigned)z}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

EXPORT CUresult cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_bytes,
                               Stream *handle, void **kernel_parameters, void **extra) {
  return in_context([&] {
    auto stream = find_stream(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    Extents extents = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
    auto made = std::make_shared<KernelNode>();
    CUresult result = make_kernel(function, extents, dynamic_bytes, kernel_parameters, extra, *made);
    if (result == CUDA_SUCCESS) submit(*stream, made);
    return result;
  });
}
