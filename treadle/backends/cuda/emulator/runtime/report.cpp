// Collects findings: one for each kind, location and buffer, with the first threads that caused it.
#include <pthread.h>
#include <string.h>

#include "state.h"

namespace emu {
namespace {

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// The check that finds it; 0 where it ends the launch and is always reported.
uint32_t check_of(What what) {
  switch (what) {
    case RACE_READ_WRITE: case RACE_WRITE_WRITE: case RACE_IN_FLIGHT: case MBARRIER_REINITIALISED: case MBARRIER_UNPUBLISHED:
    case MBARRIER_BEHIND: case TENSOR_UNREAD: case TENSOR_UNARRIVED: case CLUSTER_ENDED: case CLUSTER_SCOPE: case ASYNC_UNFENCED:
    case WGMMA_SUMS: case WGMMA_FENCE: case WGMMA_UNWAITED: case WGMMA_DROPPED: return CHECK_RACES;
    case BOUNDS_OUTSIDE: case BOUNDS_INDEX: case BOUNDS_MISALIGNED: case BOUNDS_READ_ONLY: case MBARRIER_BYTES:
    case CLUSTER_RANK: case STORE_BARRIER: case TENSOR_MAP: case TENSOR_ALIGNMENT: case TENSOR_COORDINATE: case WGMMA_DESCRIPTOR:
    case WGMMA_SWIZZLE: case REGISTERS_NUMBER: case TENSOR_MODE: case TENSOR_PIXEL: case TENSOR_OFFSET: return CHECK_BOUNDS;
    case INIT_SHARED: case INIT_REGISTER: case MBARRIER_UNINITIALISED: return CHECK_INIT;
    case BOUNDS_WILD: case CRASH_ARITHMETIC: case MBARRIER_STUCK: case NAMED_STUCK: case WGMMA_STUCK:
    case CLUSTER_STUCK: return 0;
    default: return CHECK_DIVERGENCE;
  }
}

bool wanted(What what) {
  uint32_t check = check_of(what);
  return !check || checks(check);
}

// The finding of this kind and location, new if there is none; null where it is not wanted or there are too many.
Finding *find(const FindingKey &key, uint32_t line, uint32_t block) {
  Request &request = *worker->launch->request;
  for (uint32_t i = 0; i < request.num_findings; ++i) {
    Finding &f = request.findings[i];
    if (f.what == key.what && f.pc == key.pc && f.buffer == key.buffer && f.line == line &&
        f.other_pc == key.other_pc) {
      f.count++;
      return &f;
    }
  }
  if (request.num_findings == MAX_FINDINGS) return nullptr;
  Finding &f = request.findings[request.num_findings++];
  memset(&f, 0, sizeof f);
  f.what = key.what;
  f.line = line;
  f.pc = key.pc;
  f.other_pc = key.other_pc;
  f.buffer = key.buffer;
  f.block = block;
  f.thread = f.other_thread = ~0u;
  f.count = 1;
  return &f;
}

struct Lock {
  int before;
  Lock() : before(worker->in_runtime) {
    worker->in_runtime = 1;
    pthread_mutex_lock(&mutex);
  }
  ~Lock() {
    pthread_mutex_unlock(&mutex);
    worker->in_runtime = before;
  }
};

// Fills in who did what. Of several occurrences the one of the lowest block and thread stays, so that
// reports do not depend on which worker was faster.
void describe(Finding &f, uint32_t bytes, int64_t offset, const Slot *other) {
  const Worker &w = *worker;
  uint32_t thread = w.current->index;
  if (f.thread != ~0u && (w.block > f.block || (w.block == f.block && thread >= f.thread))) {
    if (w.block == f.block) f.threads[thread / WARP_SIZE] |= 1u << (thread % WARP_SIZE);
    return;
  }
  if (f.thread != ~0u && w.block != f.block) memset(f.threads, 0, sizeof f.threads);
  f.threads[thread / WARP_SIZE] |= 1u << (thread % WARP_SIZE);
  f.block = w.block;
  f.thread = thread;
  f.size = bytes;
  f.offset = offset;
  if (!other) return;
  f.other_thread = other->thread();
  f.other_block = other->block - 1;
}

}  // namespace

void report(const FindingKey &key, uint32_t bytes, int64_t offset, const Slot *other) {
  if (!wanted(key.what)) return;
  Lock lock;
  Finding *f = find(key, 0, worker->block);
  if (f) describe(*f, bytes, offset, other);
}

void report_numbers(const FindingKey &key, uint32_t bytes, int64_t offset, const Numbers &numbers) {
  if (!wanted(key.what)) return;
  Lock lock;
  Finding *f = find(key, 0, worker->block);
  if (!f) return;
  const uint32_t thread = f->thread, block = f->block;
  describe(*f, bytes, offset, nullptr);
  if (f->thread == thread && f->block == block) return;
  memcpy(f->numbers, numbers.at, sizeof f->numbers);
}

void report_stuck(const FindingKey &key, const uint32_t *threads, int64_t offset, const Numbers &numbers) {
  Lock lock;
  Finding *f = find(key, 0, worker->block);
  if (!f || f->block < worker->block) return;
  f->block = worker->block;
  f->offset = offset;
  f->size = 8;
  memcpy(f->numbers, numbers.at, sizeof f->numbers);
  for (uint32_t i = 0; i < MAX_WARPS; ++i) f->threads[i] |= threads[i];
}

void report_index(uint64_t pc, int64_t index, const char *text) {
  if (!checks(CHECK_BOUNDS)) return;
  {
    Lock lock;
    Finding *f = find({BOUNDS_INDEX, pc, 0, NO_BUFFER}, 0, worker->block);
    if (f) {
      describe(*f, 0, index, nullptr);
      f->text = text;
    }
  }
  abandon();
}

void report_value(Request &request, int32_t buffer, uint32_t bytes, int64_t offset, uint64_t pc, const Slot &writer) {
  uint32_t thread = writer.thread(), bit = 1u << (thread % WARP_SIZE);
  for (uint32_t i = 0; i < request.num_findings; ++i) {
    Finding &f = request.findings[i];
    if (f.what != INIT_REGISTER || f.pc != pc || f.buffer != buffer) continue;
    f.count++;
    if (f.block == writer.block - 1) f.threads[thread / WARP_SIZE] |= bit;
    return;
  }
  if (request.num_findings == MAX_FINDINGS) return;
  Finding &f = request.findings[request.num_findings++];
  memset(&f, 0, sizeof f);
  f.what = INIT_REGISTER;
  f.pc = pc;
  f.buffer = buffer;
  f.size = bytes;
  f.offset = offset;
  f.thread = thread;
  f.other_thread = ~0u;
  f.block = writer.block - 1;
  f.count = 1;
  f.threads[thread / WARP_SIZE] = bit;
}

void report_threads(const FindingKey &key, const uint32_t *threads, uint32_t line, uint32_t other_line) {
  if (!wanted(key.what)) return;
  Lock lock;
  Finding *f = find(key, line, worker->block);
  if (!f || f->block < worker->block) return;
  f->other_line = other_line;
  if (f->block > worker->block) memset(f->threads, 0, sizeof f->threads);
  f->block = worker->block;
  for (uint32_t i = 0; i < MAX_WARPS; ++i) f->threads[i] |= threads[i];
}

}  // namespace emu
