// The logs of a block's lanes, and how they become requests of warps.
#include "counters.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"

namespace emu {
namespace {

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

template <typename T> T *reserve(uint64_t number) {
  void *made = mmap(nullptr, (number + 1) * sizeof(T), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? nullptr : (T *)made;
}
template <typename T> void give_back(T *memory, uint64_t number) {
  if (memory) munmap((void *)memory, (number + 1) * sizeof(T));
}

Count &new_count(Counting &c) {
  if (c.num_counts == c.capacity) {
    c.capacity = c.capacity ? c.capacity * 2 : 256;
    c.counts = (Count *)realloc(c.counts, c.capacity * sizeof(Count));
  }
  Count &made = c.counts[c.num_counts++];
  memset(&made, 0, sizeof made);
  return made;
}

Count &count_at(Counting &c, uint32_t pc) {
  if (c.places[pc]) return c.counts[c.places[pc] - 1];
  Count &made = new_count(c);
  made.pc = pc;
  c.places[pc] = c.num_counts;
  return made;
}

Count &count_at_line(Counting &c, uint32_t line) {
  for (uint32_t i = 0; i < c.num_counts; ++i) {
    if (c.counts[i].line == line) return c.counts[i];
  }
  Count &made = new_count(c);
  made.line = line;
  return made;
}

void add_event(Worker &w, const Event &event) {
  Fiber &self = *w.current;
  LaneLog &own = w.counting->logs[self.index];
  while (own.count == LOG_EVENTS) {
    own.full = true;
    self.standing = READY;
    self.pc = event.pc + w.launch->module_low;
    yield();
  }
  own.events[own.count++] = event;
}

void count_group(Counting &c, LaneLog *logs, uint32_t lanes) {
  const Event &first = logs[__builtin_ctz(lanes)].events[logs[__builtin_ctz(lanes)].next];
  if (first.kind == WAIT) count_at(c, first.pc).waits++;
  if (first.kind == PASS || first.kind == WAIT) return;
  Touch touches[WARP_SIZE];
  uint32_t number = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    const uint32_t lane = __builtin_ctz(rest);
    const Event &event = logs[lane].events[logs[lane].next];
    touches[number++] = {event.address, lane, event.bytes};
  }
  count_request(count_at(c, first.pc), first.kind, touches, number);
}

// The lanes of `pending` whose next event comes first in the code; lanes that are ahead wait for them, as the lanes
// of a warp do that has to come together again.
uint32_t first_in_code(const LaneLog *logs, uint32_t pending) {
  uint64_t first = ~0ull;
  uint32_t lanes = 0;
  for (uint32_t rest = pending; rest; rest &= rest - 1) {
    const uint32_t lane = __builtin_ctz(rest);
    const Event &event = logs[lane].events[logs[lane].next];
    const uint64_t place = (uint64_t)event.pc << 8 | event.kind;
    if (place < first) lanes = 0;
    if (place <= first) {
      first = place;
      lanes |= 1u << lane;
    }
  }
  return lanes;
}

// Replays the logs of a warp. It ends where a lane of `open`, which will log more, has no event left.
void replay(Worker &w, uint32_t warp, uint32_t open) {
  Counting &c = *w.counting;
  LaneLog *logs = c.logs + warp * WARP_SIZE;
  uint32_t pending = 0;
  for (uint32_t rest = w.warps[warp].present; rest; rest &= rest - 1) {
    const uint32_t lane = __builtin_ctz(rest);
    if (logs[lane].count) pending |= 1u << lane;
  }
  while (pending && !(open & ~pending)) {
    const uint32_t lanes = first_in_code(logs, pending);
    count_group(c, logs, lanes);
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const uint32_t lane = __builtin_ctz(rest);
      if (++logs[lane].next == logs[lane].count) pending &= ~(1u << lane);
    }
  }
  for (uint32_t rest = w.warps[warp].present; rest; rest &= rest - 1) {
    LaneLog &log = logs[__builtin_ctz(rest)];
    log.count -= log.next;
    if (log.count) memmove(log.events, log.events + log.next, log.count * sizeof(Event));
    log.next = 0;
  }
}

}  // namespace

// The compiled text adds to it, see operations.cpp.
extern "C" __thread uint64_t *treadle_emu_runs __attribute__((tls_model("initial-exec")));
__thread uint64_t *treadle_emu_runs;

bool open_counting(Worker &w) {
  const Request &request = *w.launch->request;
  w.counting = nullptr;
  if (!request.counters) return true;
  Counting *c = w.counting = (Counting *)calloc(1, sizeof(Counting));
  if (!c) return false;
  c->shared_low = UINT64_MAX;
  for (uint32_t i = 0; i < request.num_variables; ++i) {
    const uint64_t start = (uint64_t)request.anchor() + (uint64_t)request.variables[i].offset;
    const uint64_t end = start + request.variables[i].bytes;
    if (start < c->shared_low) c->shared_low = start;
    if (end > c->shared_high) c->shared_high = end;
  }
  c->module_bytes = w.launch->module_high - w.launch->module_low;
  c->logs = reserve<LaneLog>(w.num_threads);
  c->places = reserve<uint32_t>(c->module_bytes);
  c->runs = treadle_emu_runs = reserve<uint64_t>(request.num_runs);
  return c->logs && c->places && c->runs;
}

void close_counting(Worker &w) {
  Counting *c = w.counting;
  Request &request = *w.launch->request;
  treadle_emu_runs = nullptr;
  if (!c) return;
  pthread_mutex_lock(&mutex);
  for (uint32_t i = 0; c->runs && i < request.num_runs; ++i) request.runs[i] += c->runs[i];
  const uint32_t before = request.num_counts, number = c->num_counts;
  if (number) {
    request.counts = (Count *)realloc(request.counts, (before + number) * sizeof(Count));
    memcpy((void *)(request.counts + before), c->counts, number * sizeof(Count));
    request.num_counts = before + number;
  }
  pthread_mutex_unlock(&mutex);
  give_back(c->logs, w.num_threads);
  give_back(c->places, c->module_bytes);
  give_back(c->runs, request.num_runs);
  free(c->counts);
  free(c);
  w.counting = nullptr;
}

void start_counting_block(Worker &w) {
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    LaneLog &log = w.counting->logs[i];
    log.next = log.count = 0;
    log.full = false;
  }
}

void finish_requests(Worker &w) {
  for (uint32_t warp = 0; warp < w.num_warps; ++warp) replay(w, warp, 0);
}

bool resume_full_lanes(Worker &w) {
  bool any = false;
  for (uint32_t warp = 0; warp < w.num_warps; ++warp) {
    LaneLog *logs = w.counting->logs + warp * WARP_SIZE;
    uint32_t full = 0, resumed = 0;
    for (uint32_t rest = w.warps[warp].present; rest; rest &= rest - 1) {
      if (logs[__builtin_ctz(rest)].full) full |= 1u << __builtin_ctz(rest);
    }
    if (!full) continue;
    replay(w, warp, full);
    for (uint32_t rest = full; rest; rest &= rest - 1) {
      const uint32_t lane = __builtin_ctz(rest);
      if (logs[lane].count == LOG_EVENTS) continue;
      logs[lane].full = false;
      resumed |= 1u << lane;
    }
    wake(w, warp, resumed);
    any = true;
  }
  return any;
}

void log_access(Worker &w, const void *pointer, uint32_t bytes, Access access, uint64_t pc) {
  const uint64_t address = (uint64_t)pointer, arena = (uint64_t)w.launch->global.arena;
  const bool shared = address >= w.counting->shared_low && address < w.counting->shared_high;
  if (!shared && (address < arena || address >= arena + w.launch->global.arena_bytes)) return;
  if (access == COPY_DONE || !bytes) return;
  EventKind kind = shared ? SHARED_WRITE : GLOBAL_WRITE;
  if (access == READ) kind = shared ? SHARED_READ : GLOBAL_READ;
  if (access == ATOMIC) kind = shared ? SHARED_ATOMIC : GLOBAL_ATOMIC;
  add_event(w, {address, (uint32_t)(pc - w.launch->module_low), bytes, kind});
}

void log_wait(Worker &w, uint64_t pc) { add_event(w, {0, (uint32_t)(pc - w.launch->module_low), 0, WAIT}); }

void count_barrier(Worker &w, uint32_t line) { count_at_line(*w.counting, line).barriers++; }

void count_operations(Worker &w, uint64_t pc, uint64_t operations) {
  count_at(*w.counting, (uint32_t)(pc - w.launch->module_low)).operations += operations;
}

void count_matrices(Worker &w, const uint8_t *const *rows, uint32_t number, uint64_t pc, bool written) {
  Count &count = count_at(*w.counting, (uint32_t)(pc - w.launch->module_low));
  count.shared_requests++;
  for (uint32_t matrix = 0; matrix < number; ++matrix) {
    Touch touches[8];
    uint32_t present = 0;
    for (uint32_t row = matrix * 8; row < matrix * 8 + 8; ++row) {
      if (rows[row]) touches[present++] = {(uint64_t)rows[row], row, 16};
    }
    if (!present) continue;
    (written ? count.shared_written : count.shared_read) += present * 16;
    count_shared_phase(count, touches, present, 16);
  }
}

void count_bulk(Worker &w, uint64_t pc, bool loads, uint64_t sectors, uint64_t bytes, uint64_t shared_bytes) {
  Count &count = count_at(*w.counting, (uint32_t)(pc - w.launch->module_low));
  count.global_requests++;
  count.global_sectors += sectors;
  count.global_ideal += (bytes + 31) / 32;
  (loads ? count.global_read : count.global_written) += bytes;
  (loads ? count.shared_written : count.shared_read) += shared_bytes;
}

void count_shared_reads(Worker &w, uint64_t pc, uint64_t bytes) {
  count_at(*w.counting, (uint32_t)(pc - w.launch->module_low)).shared_read += bytes;
}

}  // namespace emu

using namespace emu;

// A loop of the text begins another pass: that counts as its end, to which the lanes in its body come first.
extern "C" __attribute__((visibility("hidden"))) void treadle_emu_log_pass(uint64_t end) {
  if (!worker || !worker->counting) return;
  add_event(*worker, {0, (uint32_t)(end - worker->launch->module_low), 0, PASS});
}

extern "C" void treadle_emu_free_counts(Request *request) {
  free(request->counts);
  request->counts = nullptr;
  request->num_counts = 0;
}
