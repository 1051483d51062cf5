// CUDA graphs: a stream's work, recorded instead of queued. An instance has the launches of its graph, each with
// arguments of its own.
#include <algorithm>
#include <mutex>
#include <thread>

#include "driver.h"

namespace {

enum { MODE_GLOBAL = 0, MODE_RELAXED = 2 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };

struct Capture {
  std::shared_ptr<Stream> stream;
  int mode;
  std::thread::id thread;
};

std::vector<Capture> captures;

std::shared_ptr<Graph> find(Graph *graph) {
  auto found = device().graphs.find(graph);
  return found == device().graphs.end() ? nullptr : found->second;
}

Graph *keep(std::shared_ptr<Graph> graph) {
  Graph *key = graph.get();
  device().graphs[key] = std::move(graph);
  return key;
}

CUresult forget(Graph *graph) { return device().graphs.erase(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }

bool lives(const Node *node) {
  for (auto &[key, graph] : device().graphs) {
    for (auto &each : graph->nodes) {
      if (each.get() == node) return true;
    }
  }
  return false;
}

// CUDA_KERNEL_NODE_PARAMS_v1 of cuda.h.
struct Parameters {
  Function *function;
  unsigned grid[3], block[3], dynamic_bytes;
  void **kernel_parameters, **extra;
};

}  // namespace

bool forbidden_by_capture() {
  bool found = false;
  for (Capture &each : captures) {
    if (each.mode == MODE_RELAXED || (each.mode != MODE_GLOBAL && each.thread != std::this_thread::get_id())) continue;
    each.stream->invalidated = found = true;
  }
  return found;
}

EXPORT CUresult cuStreamBeginCapture_v2(Stream *handle, int mode) {
  return in_context([&] {
    auto stream = find_stream(handle);
    // The default stream cannot be captured.
    if (!stream || stream == device().legacy || stream->recording) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->recording = std::make_unique<Graph>();
    stream->invalidated = false;
    stream->last = nullptr;
    captures.push_back({stream, mode, std::this_thread::get_id()});
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuStreamEndCapture(Stream *handle, Graph **out) {
  return in_context([&] {
    auto stream = find_stream(handle);
    if (!stream || !stream->recording) return CUDA_ERROR_INVALID_HANDLE;
    captures.erase(std::remove_if(captures.begin(), captures.end(), [&](auto &each) { return each.stream == stream; }),
                   captures.end());
    std::shared_ptr<Graph> made = std::move(stream->recording);
    *out = stream->invalidated ? nullptr : keep(made);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  });
}

EXPORT CUresult cuStreamIsCapturing(Stream *handle, int *status) {
  return in_context([&] {
    auto stream = find_stream(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *status = !stream->recording ? CAPTURE_NONE : stream->invalidated ? CAPTURE_INVALIDATED : CAPTURE_ACTIVE;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(Stream *handle, int *status, uint64_t *id, Graph **graph,
                                          Node *const **dependencies, size_t *count) {
  return in_context([&] {
    auto stream = find_stream(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *status = stream->recording ? CAPTURE_ACTIVE : CAPTURE_NONE;
    if (!stream->recording) return CUDA_SUCCESS;
    if (id) *id = 1;
    if (graph) *graph = stream->recording.get();
    if (dependencies) *dependencies = &stream->last;
    if (count) *count = stream->last ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuGraphInstantiateWithFlags(Graph **out, Graph *graph, unsigned long long) {
  return in_context([&] {
    auto known = find(graph);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    auto made = std::make_shared<Graph>();
    for (auto &node : known->nodes) {
      auto own = node->kernel ? std::make_shared<KernelNode>(*node->kernel) : nullptr;
      if (own) made->instances[node.get()] = own;
      made->nodes.push_back(std::unique_ptr<Node>(new Node{own, node->work}));
    }
    *out = keep(made);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuGraphKernelNodeGetParams(Node *node, Parameters *out) {
  return in_context([&] {
    if (!lives(node) || !node->kernel) return CUDA_ERROR_INVALID_VALUE;
    const KernelNode &kernel = *node->kernel;
    *out = {};
    out->function = kernel.function;
    std::copy(kernel.extents.grid, kernel.extents.grid + 3, out->grid);
    std::copy(kernel.extents.block, kernel.extents.block + 3, out->block);
    out->dynamic_bytes = kernel.dynamic_bytes;
    return CUDA_SUCCESS;
  });
}

// The node is one of the graph that was instantiated, which still lives.
EXPORT CUresult cuGraphExecKernelNodeSetParams(Graph *instance, Node *node, const Parameters *given) {
  return in_context([&] {
    auto known = find(instance);
    if (!known || !lives(node)) return CUDA_ERROR_INVALID_VALUE;
    auto found = known->instances.find(node);
    if (found == known->instances.end() || found->second->function != given->function) return CUDA_ERROR_INVALID_VALUE;
    Extents extents;
    std::copy(given->grid, given->grid + 3, extents.grid);
    std::copy(given->block, given->block + 3, extents.block);
    return make_kernel(given->function, extents, given->dynamic_bytes, given->kernel_parameters, given->extra,
                       *found->second);
  });
}

EXPORT CUresult cuGraphLaunch(Graph *instance, Stream *handle) {
  return in_context([&] {
    auto known = find(instance);
    auto stream = find_stream(handle);
    if (!known || !stream) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto &node : known->nodes) {
      // Arguments that are changed later are those of later launches.
      if (node->kernel) submit(*stream, std::make_shared<KernelNode>(*node->kernel));
      else submit(*stream, node->work);
    }
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuGraphDestroy(Graph *graph) {
  return in_context([&] { return forget(graph); });
}

EXPORT CUresult cuGraphExecDestroy(Graph *instance) {
  return in_context([&] { return forget(instance); });
}
