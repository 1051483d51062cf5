// The state that functions of treadle_hopper.h share: the window of shared memory, who waits, and what ends with a block.
#include "hopper.h"

#include <stdlib.h>
#include <string.h>

namespace emu {
namespace {

template <typename T> bool make(T *&array, uint64_t number) { return (array = (T *)calloc(number, sizeof(T))) != nullptr; }

// A variable keeps its place within 1024 bytes, which swizzles depend on.
const Placed &place(Worker &w, uint32_t variable) {
  Hopper &h = *w.hopper;
  for (uint32_t i = 0; i < h.num_placed; ++i) {
    if (h.placed[i].variable == variable) return h.placed[i];
  }
  const SharedVariable &v = w.launch->request->variables[variable];
  uint8_t *memory = h.anchor + v.offset;
  const uint32_t start = h.window_end + ((uint32_t)(uintptr_t)memory - h.window_end) % 1024;
  h.window_end = start + (uint32_t)v.bytes + CHUNK;
  if (h.window_end > WINDOW_BYTES) {
    stop_launch(OUT_OF_MEMORY);
    abandon();
  }
  h.placed[h.num_placed] = {start, variable, memory, v.bytes};
  return h.placed[h.num_placed++];
}

bool open(Worker &w, Hopper &h) {
  const Request &request = *w.launch->request;
  h.anchor = (uint8_t *)request.anchor();
  h.window_end = WINDOW_START;
  if (!make(h.placed, request.num_variables + 1) || !make(h.barrier_at, WINDOW_BYTES / 8)) return false;
  if (!make(h.threads, w.num_threads)) return false;
  if (!request.checks) return true;
  if (!make(h.tags, WINDOW_BYTES / CHUNK) || !make(h.fenced_before, w.num_threads)) return false;
  const uint32_t blocks = w.cluster ? w.cluster->size : 1;
  w.clocks.threads = blocks * w.num_threads;
  w.clocks.first = w.rank * w.num_threads;
  w.clocks.first_phase = 3 * w.clocks.threads + w.rank * MOST_BARRIERS;
  w.clocks.width = 3 * w.clocks.threads + blocks * MOST_BARRIERS;
  if (w.cluster && (!make(h.reached, w.clocks.threads) || !make(h.left, w.clocks.width))) return false;
  return make(w.clocks.all, (uint64_t)w.num_threads * w.clocks.width);
}

}  // namespace

Hopper &hopper() {
  Worker &w = *worker;
  if (w.hopper) return *w.hopper;
  const int before = w.in_runtime;
  w.in_runtime = 1;
  Hopper *made = (Hopper *)calloc(1, sizeof(Hopper));
  w.hopper = made;
  const bool opened = made && open(w, *made);
  w.in_runtime = before;
  if (!opened) {
    stop_launch(OUT_OF_MEMORY);
    abandon();
  }
  made->random = 0x9e3779b97f4a7c15ull * (w.block + 1);
  return *made;
}

uint32_t random(Hopper &h, uint32_t below) {
  h.random = h.random * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(h.random >> 33) % below;
}

void begin_hopper(Worker &w) {
  Hopper &h = *w.hopper;
  h.random = 0x9e3779b97f4a7c15ull * (w.block + 1);
  for (uint32_t i = 0; i < h.num_barriers; ++i) {
    Mbarrier &b = h.barriers[i];
    h.barrier_at[b.address / 8] = 0;
    free(b.gathered.clock);
    free(b.released.clock);
  }
  memset((void *)h.barriers, 0, h.num_barriers * sizeof(Mbarrier));
  h.num_barriers = h.num_loads = h.num_stores = 0;
  memset(h.at_cluster, 0, sizeof h.at_cluster);
  if (h.reached) memset((void *)h.reached, 0, w.clocks.threads * sizeof(Slot));
  if (h.left) memset(h.left, 0, w.clocks.width * sizeof(uint32_t));
  for (NamedBarrier &named : h.named) {
    free(named.gathered.clock);
    free(named.released.clock);
    named = {};
  }
  for (Warpgroup &group : h.groups) {
    group.computed = group.issued = group.complete = 0;
    for (uint32_t i = 0; i < group.num_sums; ++i) group.sums[i]->users = 0;
    memset(group.waiting, 0, sizeof group.waiting);
    group.version++;
  }
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    const TensorStores stores = h.threads[i].stores;
    h.threads[i] = {};
    h.threads[i].stores = {stores.copies, 0, stores.capacity, 0};
  }
  if (h.fenced_before) memset((void *)h.fenced_before, 0, w.num_threads * sizeof(FencedBefore));
  if (w.clocks.all) memset(w.clocks.all, 0, (uint64_t)w.num_threads * w.clocks.width * sizeof(uint32_t));
}

void close_hopper(Worker &w) {
  if (!w.hopper) return;
  Hopper &h = *w.hopper;
  if (h.threads) begin_hopper(w);
  for (uint32_t i = 0; h.threads && i < w.num_threads; ++i) free(h.threads[i].stores.copies);
  for (Warpgroup &group : h.groups) {
    for (uint32_t i = 0; i < group.num_sums; ++i) free(group.sums[i]);
    free(group.products);
    free(group.least);
  }
  free(h.placed);
  free(h.barrier_at);
  free(h.threads);
  free(h.tags);
  free(h.fenced_before);
  free(h.loads);
  free(h.stores);
  free(h.reached);
  free(h.left);
  free(w.clocks.all);
  free(w.hopper);
  w.hopper = nullptr;
  w.clocks = {};
}

void begin_hopper_epoch(Worker &w) {
  begin_clock_epoch(w);
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    TensorStores &stores = w.hopper->threads[i].stores;
    for (uint32_t n = 0; n < stores.count; ++n) stores.copies[n].until = 0;
  }
}

WindowPlace place_of(const Worker &w, uint32_t address) {
  const Hopper &h = *w.hopper;
  for (uint32_t i = h.num_placed; i--;) {
    const Placed &at = h.placed[i];
    if (address < at.start) continue;
    const int64_t offset = address - at.start;
    return {at.memory + offset, -1 - (int32_t)at.variable, offset, (int64_t)at.bytes - offset};
  }
  return {nullptr, NO_BUFFER, (int64_t)address, 0};
}

WindowPlace place_of_memory(const Worker &w, const uint8_t *memory) {
  const Hopper &h = *w.hopper;
  for (uint32_t i = 0; i < h.num_placed; ++i) {
    const int64_t offset = memory - h.placed[i].memory;
    if (offset >= 0 && offset < (int64_t)h.placed[i].bytes) return place_of(w, h.placed[i].start + (uint32_t)offset);
  }
  return {nullptr, NO_BUFFER, 0, 0};
}

const Tag *tag_of(const Worker &w, const uint8_t *memory) {
  const Hopper &h = *w.hopper;
  for (uint32_t i = 0; i < h.num_placed; ++i) {
    const int64_t offset = memory - h.placed[i].memory;
    if (offset >= 0 && offset < (int64_t)h.placed[i].bytes) return &h.tags[(h.placed[i].start + offset) / CHUNK];
  }
  return nullptr;
}

void touch_shared(uint32_t address, uint32_t bytes, Access access, uint64_t pc) {
  Worker &w = *worker;
  if (!w.launch->request->checks) return;
  const WindowPlace place = place_of(w, address);
  if (place.memory) check_access(place.memory, bytes, access, pc);
}

void wait_for(Standing standing, uint32_t *waiting, uint64_t pc) {
  Fiber &self = *worker->current;
  waiting[self.index % MAX_THREADS / WARP_SIZE] |= 1u << (self.index % WARP_SIZE);
  self.standing = standing;
  self.pc = pc;
  yield();
}

void wake_all(Worker &w, uint32_t *waiting) {
  for (uint32_t i = 0; i < MAX_WARPS; ++i) {
    if (waiting[i]) wake(w, i, waiting[i]);
    waiting[i] = 0;
  }
}

namespace {

void report_waiting_mbarrier(Worker &w, uint32_t index) {
  const Mbarrier &b = w.hopper->barriers[index];
  uint64_t pc = 0;
  for (uint32_t i = 0; i < w.num_threads && !pc; ++i) {
    if (b.waiting[i / WARP_SIZE] >> (i % WARP_SIZE) & 1) pc = w.fibers[i].pc;
  }
  const WindowPlace place = place_of(w, b.address);
  report_stuck({MBARRIER_STUCK, pc, 0, place.buffer}, b.waiting, place.offset, {{b.left, b.count, b.bytes, b.phase}});
}

void report_waiting_named(Worker &w, uint32_t number) {
  const NamedBarrier &b = w.hopper->named[number];
  uint64_t pc = 0;
  for (uint32_t i = 0; i < w.num_threads && !pc; ++i) {
    if (b.waiting[i / WARP_SIZE] >> (i % WARP_SIZE) & 1) pc = w.fibers[i].pc;
  }
  report_stuck({NAMED_STUCK, pc, 0, NO_BUFFER}, b.waiting, 0, {{number, b.arrived, b.expected}});
}

// Whether threads stand there, which is reported.
bool report_standing(Worker &w, Standing standing, What what) {
  uint32_t threads[MAX_WARPS] = {};
  uint64_t pc = 0;
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    if (w.fibers[i].standing != standing) continue;
    threads[i / WARP_SIZE] |= 1u << (i % WARP_SIZE);
    if (!pc) pc = w.fibers[i].pc;
  }
  if (pc) report_stuck({what, pc, 0, NO_BUFFER}, threads, 0, {{0}});
  return pc != 0;
}

bool any(const uint32_t *waiting) {
  for (uint32_t i = 0; i < MAX_WARPS; ++i) {
    if (waiting[i]) return true;
  }
  return false;
}

}  // namespace

bool report_stuck_block(Worker &w) {
  Hopper &h = *w.hopper;
  bool stuck = false;
  for (uint32_t i = 0; i < h.num_barriers; ++i) {
    if (!any(h.barriers[i].waiting)) continue;
    report_waiting_mbarrier(w, i);
    stuck = true;
  }
  for (uint32_t i = 0; i < NAMED_BARRIERS; ++i) {
    if (!any(h.named[i].waiting)) continue;
    report_waiting_named(w, i);
    stuck = true;
  }
  stuck = report_standing(w, AT_WARPGROUP, WGMMA_STUCK) || stuck;
  return report_standing(w, AT_CLUSTER, CLUSTER_STUCK) || stuck;
}

bool resolve_hopper(Worker &w) {
  Hopper &h = *w.hopper;
  if (under_way(w)) {
    land(w, random(h, under_way(w)));
    return true;
  }
  if (!report_stuck_block(w)) return false;
  stop_launch(STUCK);
  return true;
}

void leave_hopper(Worker &w) {
  Hopper &h = *w.hopper;
  Asynchronous &own = h.threads[w.current->index];
  for (uint32_t i = 0; i < own.stores.count; ++i) {
    const TensorCopy &copy = own.stores.copies[i];
    if (!copy.was_read) report({TENSOR_UNREAD, copy.pc, 0, place_of(w, copy.tile).buffer}, 16, place_of(w, copy.tile).offset, nullptr);
  }
  finish_stores(w, true, ~0u);
  for (uint32_t i = 0; i < own.num_held; ++i) {
    if (own.held[i].flying) report({WGMMA_UNWAITED, own.held[i].pc, 0, NO_BUFFER}, 4, 0, nullptr);
  }
  leave_clock(w);
  if (w.left + 1 < w.num_threads) return;
  check_registers(w);
  if (h.reached) check_reached(w);
  for (uint32_t i = 0; i < h.num_loads; ++i) {
    uint32_t threads[MAX_WARPS] = {};
    threads[h.loads[i].thread / WARP_SIZE] |= 1u << (h.loads[i].thread % WARP_SIZE);
    report_threads({TENSOR_UNARRIVED, h.loads[i].pc, 0, place_of(w, h.loads[i].tile).buffer}, threads);
  }
  for (uint32_t i = 0; i < h.num_stores; ++i) {
    uint32_t threads[MAX_WARPS] = {};
    threads[h.stores[i].thread / WARP_SIZE] |= 1u << (h.stores[i].thread % WARP_SIZE);
    report_threads({TENSOR_UNARRIVED, h.stores[i].pc, 0, place_of(w, h.stores[i].address).buffer}, threads);
  }
}

}  // namespace emu

using namespace emu;

extern "C" uint32_t treadle_emu_shared_address(const void *pointer) {
  const Hopper &h = hopper();
  const Request &request = *worker->launch->request;
  uint32_t nearest = 0;
  int64_t distance = INT64_MAX;
  for (uint32_t i = 0; i < request.num_variables; ++i) {
    const int64_t offset = (const uint8_t *)pointer - (h.anchor + request.variables[i].offset);
    if (offset < 0 || offset >= distance) continue;
    nearest = i;
    distance = offset;
  }
  // Whoever launches without saying what variables there are has no window.
  if (distance == INT64_MAX) return (uint32_t)(uintptr_t)pointer;
  return place(*worker, nearest).start + (uint32_t)distance;
}
