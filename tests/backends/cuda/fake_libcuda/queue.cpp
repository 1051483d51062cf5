// Streams and events. Each stream has a queue of its own, whose work is done when somebody waits for it.
#include <time.h>

#include <algorithm>
#include <thread>

#include "driver.h"

namespace {

enum { NON_BLOCKING = 1 };                         // CU_STREAM_NON_BLOCKING
enum { LEGACY_HANDLE = 1, PER_THREAD_HANDLE = 2 };  // CU_STREAM_LEGACY, CU_STREAM_PER_THREAD

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

std::shared_ptr<Event> find(Event *event) {
  auto found = device().events.find(event);
  return found == device().events.end() ? nullptr : found->second;
}

bool done(const Event &event) { return event.reached == event.recorded; }

std::vector<std::shared_ptr<Stream>> all_streams() {
  std::vector<std::shared_ptr<Stream>> found = device().orphans;
  for (auto &[handle, stream] : device().streams) found.push_back(stream);
  found.push_back(device().legacy);
  return found;
}

// Does the work of a stream up to an operation. What it waits for has a lower number, so that this ends.
void finish_until(const std::shared_ptr<Stream> &stream, uint64_t number) {
  Device &d = device();
  while (d.failure == CUDA_SUCCESS && !stream->queue.empty() && stream->queue.front().number <= number) {
    Operation next = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (stream == d.legacy) {
      for (const auto &other : all_streams()) {
        if (other != stream && other->blocking) finish_until(other, next.number - 1);
      }
    } else if (stream->blocking) {
      finish_until(d.legacy, next.number - 1);
    }
    if (d.failure != CUDA_SUCCESS) break;
    CUresult result = next.run();
    if (result == CUDA_SUCCESS) continue;
    d.failure = result;
    drop_all_work();
  }
}

// Lets one piece of work be done, so that asking again and again comes to an end.
CUresult asked(const std::shared_ptr<Stream> &stream) {
  if (!stream->queue.empty()) finish_until(stream, stream->queue.front().number);
  return device().failure == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : device().failure;
}

void enqueue(Stream &stream, Work run) { stream.queue.push_back({++driver().operations, std::move(run)}); }

void record(Stream &stream, std::unique_ptr<Node> node) {
  stream.last = node.get();
  stream.recording->nodes.push_back(std::move(node));
}

}  // namespace

std::shared_ptr<Stream> find_stream(Stream *handle) {
  uintptr_t number = (uintptr_t)handle;
  if (number <= PER_THREAD_HANDLE) return device().legacy;  // threads have no default stream of their own here
  auto found = device().streams.find(handle);
  return found == device().streams.end() ? nullptr : found->second;
}

void submit(Stream &stream, Work run) {
  if (!stream.recording) return enqueue(stream, std::move(run));
  record(stream, std::unique_ptr<Node>(new Node{nullptr, std::move(run)}));
}

void submit(Stream &stream, std::shared_ptr<KernelNode> kernel) {
  if (!stream.recording) return enqueue(stream, [kernel] { return run(*kernel); });
  record(stream, std::unique_ptr<Node>(new Node{kernel, nullptr}));
}

CUresult finish(const std::shared_ptr<Stream> &stream) {
  finish_until(stream, driver().operations);
  return device().failure;
}

CUresult drain() {
  for (const auto &stream : all_streams()) finish(stream);
  device().orphans.clear();
  return device().failure;
}

void drop_all_work() {
  for (const auto &stream : all_streams()) stream->queue.clear();
}

EXPORT CUresult cuStreamCreate(Stream **out, unsigned flags) {
  return in_context([&] {
    auto made = std::make_shared<Stream>();
    made->blocking = !(flags & NON_BLOCKING);
    *out = made.get();
    device().streams[*out] = std::move(made);
    return CUDA_SUCCESS;
  });
}

// What is queued is still done.
EXPORT CUresult cuStreamDestroy_v2(Stream *handle) {
  return in_context([&] {
    auto found = device().streams.find(handle);
    if (found == device().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
    if (!found->second->queue.empty()) device().orphans.push_back(found->second);
    device().streams.erase(found);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuStreamSynchronize(Stream *handle) {
  return outside_capture([&] {
    auto stream = find_stream(handle);
    return stream ? finish(stream) : CUDA_ERROR_INVALID_HANDLE;
  });
}

EXPORT CUresult cuStreamQuery(Stream *handle) {
  return outside_capture([&] {
    auto stream = find_stream(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return stream->queue.empty() ? CUDA_SUCCESS : asked(stream);
  });
}

// The event as it was recorded last before this call.
EXPORT CUresult cuStreamWaitEvent(Stream *handle, Event *event, unsigned) {
  return in_context([&] {
    auto stream = find_stream(handle);
    std::shared_ptr<Event> held = find(event);
    if (!stream || !held) return CUDA_ERROR_INVALID_HANDLE;
    if (held->captured || stream->recording) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (!held->recorded) return CUDA_SUCCESS;
    submit(*stream, [before = held->stream, number = held->number] {
      finish_until(before, number);
      return device().failure;
    });
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuEventCreate(Event **out, unsigned) {
  return in_context([&] {
    auto made = std::make_shared<Event>();
    *out = made.get();
    device().events[*out] = std::move(made);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuEventDestroy_v2(Event *event) {
  return in_context([&] { return device().events.erase(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}

EXPORT CUresult cuEventRecord(Event *event, Stream *handle) {
  return in_context([&] {
    std::shared_ptr<Event> held = find(event);
    auto stream = find_stream(handle);
    if (!held || !stream) return CUDA_ERROR_INVALID_HANDLE;
    held->captured = stream->recording != nullptr;
    if (held->captured) return CUDA_SUCCESS;
    held->recorded++;
    submit(*stream, [held] {
      held->reached++;
      held->seconds = now();
      return CUDA_SUCCESS;
    });
    held->stream = stream;
    held->number = driver().operations;
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuEventSynchronize(Event *event) {
  return outside_capture([&] {
    std::shared_ptr<Event> held = find(event);
    if (!held) return CUDA_ERROR_INVALID_HANDLE;
    if (!done(*held)) finish_until(held->stream, held->number);
    return device().failure;
  });
}

EXPORT CUresult cuEventQuery(Event *event) {
  return outside_capture([&] {
    std::shared_ptr<Event> held = find(event);
    if (!held) return CUDA_ERROR_INVALID_HANDLE;
    return done(*held) ? CUDA_SUCCESS : asked(held->stream);
  });
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, Event *start, Event *end) {
  return in_context([&] {
    std::shared_ptr<Event> first = find(start), last = find(end);
    if (!first || !last || !first->recorded || !last->recorded) return CUDA_ERROR_INVALID_HANDLE;
    if (!done(*first) || !done(*last)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((last->seconds - first->seconds) * 1e3);
    return CUDA_SUCCESS;
  });
}
