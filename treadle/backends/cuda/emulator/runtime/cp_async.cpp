// Asynchronous copies: queued, their destination poisoned, until their thread waits for their group.
#include <stdlib.h>
#include <string.h>

#include "state.h"

namespace emu {

static void push(Worker &w, AsyncQueue &queue, const AsyncCopy &copy) {
  if (queue.count == queue.capacity) {
    w.in_runtime = 1;
    queue.capacity = queue.capacity ? queue.capacity * 2 : 16;
    queue.copies = (AsyncCopy *)realloc(queue.copies, queue.capacity * sizeof(AsyncCopy));
    w.in_runtime = 0;
  }
  queue.copies[queue.count++] = copy;
}

void finish_copies(Worker &w, Fiber &f, uint32_t before_group) {
  AsyncQueue &queue = f.async;
  uint32_t done = 0;
  while (done < queue.count && queue.copies[done].group < before_group) {
    const AsyncCopy &copy = queue.copies[done++];
    if (w.launch->request->checks) check_access(copy.destination, copy.bytes, COPY_DONE, copy.pc);
    memcpy(copy.destination, copy.data, copy.bytes);
  }
  queue.count -= done;
  if (queue.count) memmove(queue.copies, queue.copies + done, queue.count * sizeof(AsyncCopy));
}

}  // namespace emu

using namespace emu;

extern "C" void treadle_emu_cp_async(void *shared, const void *global, uint32_t bytes, int32_t predicate) {
  Worker &w = *worker;
  AsyncCopy copy = {};
  copy.destination = (uint8_t *)shared;
  copy.bytes = bytes;
  copy.group = w.current->async.group;
  copy.pc = (uint64_t)__builtin_return_address(0);
  const bool watched = observed(w);
  if (predicate) {
    if (watched) observe(global, bytes, READ, copy.pc);
    memcpy(copy.data, global, bytes);
  }
  if (watched) observe(shared, bytes, COPY_ISSUED, copy.pc);
  memset(shared, 0xff, bytes);
  push(w, w.current->async, copy);
}

extern "C" void treadle_emu_cp_async_commit() { worker->current->async.group++; }

extern "C" void treadle_emu_cp_async_wait(uint32_t pending) {
  Worker &w = *worker;
  AsyncQueue &queue = w.current->async;
  if (w.counting) log_wait(w, (uint64_t)__builtin_return_address(0));
  if (queue.group > pending) finish_copies(w, *w.current, queue.group - pending);
}

extern "C" void treadle_emu_cp_async_wait_all() {
  if (worker->counting) log_wait(*worker, (uint64_t)__builtin_return_address(0));
  finish_copies(*worker, *worker->current, ~0u);
}
