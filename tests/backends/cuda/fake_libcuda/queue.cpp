// Streams and events. There is one queue, so all streams run in the order of the calls.
#include <time.h>

#include <algorithm>

#include "driver.h"

namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool pending(const Stream *stream) {
  const auto &queue = device().queue;
  return std::any_of(queue.begin(), queue.end(), [=](const Operation &each) { return each.stream == stream; });
}

std::shared_ptr<Event> find(Event *event) {
  auto found = device().events.find(event);
  return found == device().events.end() ? nullptr : found->second;
}

bool done(const Event &event) { return event.reached == event.recorded; }

}  // namespace

bool valid(const Stream *stream) { return !stream || device().streams.count(const_cast<Stream *>(stream)); }

void submit(Stream *stream, std::function<CUresult()> run) {
  if (stream && stream->recording) {
    stream->recording->work.push_back(std::move(run));
  } else {
    device().queue.push_back({stream, std::move(run)});
  }
}

bool advance() {
  Device &d = device();
  if (d.queue.empty()) return false;
  Operation oldest = std::move(d.queue.front());
  d.queue.pop_front();
  d.failure = oldest.run();
  if (d.failure != CUDA_SUCCESS) d.queue.clear();
  return true;
}

CUresult drain() {
  while (advance()) {}
  return device().failure;
}

EXPORT CUresult cuStreamCreate(Stream **out, unsigned) {
  return in_context([&] {
    auto made = std::make_unique<Stream>();
    *out = made.get();
    device().streams[*out] = std::move(made);
    return CUDA_SUCCESS;
  });
}

// What is queued is still done, on the default stream.
EXPORT CUresult cuStreamDestroy_v2(Stream *stream) {
  return in_context([&] {
    if (!device().streams.erase(stream)) return CUDA_ERROR_INVALID_HANDLE;
    for (Operation &each : device().queue) {
      if (each.stream == stream) each.stream = nullptr;
    }
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuStreamSynchronize(Stream *stream) {
  return in_context([&] {
    if (!valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return stream && stream->recording ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : drain();
  });
}

// Each question lets one piece of work be done, so that asking again and again comes to an end.
EXPORT CUresult cuStreamQuery(Stream *stream) {
  return in_context([&] {
    if (!valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!pending(stream)) return CUDA_SUCCESS;
    advance();
    return device().failure == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : device().failure;
  });
}

EXPORT CUresult cuStreamWaitEvent(Stream *stream, Event *event, unsigned) {
  return in_context([&] { return valid(stream) && find(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
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

EXPORT CUresult cuEventRecord(Event *event, Stream *stream) {
  return in_context([&] {
    std::shared_ptr<Event> held = find(event);
    if (!held || !valid(stream)) return CUDA_ERROR_INVALID_HANDLE;
    held->recorded++;
    submit(stream, [held] {
      held->reached++;
      held->seconds = now();
      return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuEventSynchronize(Event *event) {
  return in_context([&] {
    std::shared_ptr<Event> held = find(event);
    if (!held) return CUDA_ERROR_INVALID_HANDLE;
    while (!done(*held) && advance()) {}
    return device().failure;
  });
}

EXPORT CUresult cuEventQuery(Event *event) {
  return in_context([&] {
    std::shared_ptr<Event> held = find(event);
    if (!held) return CUDA_ERROR_INVALID_HANDLE;
    if (done(*held)) return CUDA_SUCCESS;
    advance();
    return device().failure == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : device().failure;
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
