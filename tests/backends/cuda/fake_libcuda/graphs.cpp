// CUDA graphs: a stream's work, recorded instead of queued. An instance is a copy of its graph.
#include "driver.h"

namespace {

bool known(Graph *graph) { return device().graphs.count(graph); }

Graph *keep(std::unique_ptr<Graph> graph) {
  Graph *key = graph.get();
  device().graphs[key] = std::move(graph);
  return key;
}

CUresult forget(Graph *graph) {
  return in_context([&] { return device().graphs.erase(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}

}  // namespace

EXPORT CUresult cuStreamBeginCapture_v2(Stream *stream, int) {
  return in_context([&] {
    // The default stream cannot be captured.
    if (!stream || !valid(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->recording) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->recording = std::make_unique<Graph>();
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuStreamEndCapture(Stream *stream, Graph **out) {
  return in_context([&] {
    if (!stream || !valid(stream) || !stream->recording) return CUDA_ERROR_INVALID_HANDLE;
    *out = keep(std::move(stream->recording));
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuGraphInstantiateWithFlags(Graph **out, Graph *graph, unsigned long long) {
  return in_context([&] {
    if (!known(graph)) return CUDA_ERROR_INVALID_HANDLE;
    *out = keep(std::make_unique<Graph>(*graph));
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuGraphLaunch(Graph *instance, Stream *stream) {
  return in_context([&] {
    if (!known(instance) || !valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto &work : instance->work) submit(stream, work);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuGraphDestroy(Graph *graph) { return forget(graph); }
EXPORT CUresult cuGraphExecDestroy(Graph *instance) { return forget(instance); }
