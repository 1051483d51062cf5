// Runs one block: starts its fibers, lets them take turns, and settles what they wait for.
#include <string.h>

#include "hopper.h"
#include "state.h"

namespace emu {

__thread Worker *worker;

static const uint32_t CANARY = 0x5afe57ac;

static inline uint32_t lane_bit(const Fiber &f) { return 1u << (f.index % WARP_SIZE); }

void wake(Worker &w, uint32_t warp, uint32_t lanes) {
  w.warps[warp].waiting &= ~lanes;
  w.warps[warp].ready |= lanes;
  if (lanes) w.ready_warps |= 1u << warp;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    w.fibers[warp * WARP_SIZE + __builtin_ctz(rest)].standing = READY;
  }
}

// The next fiber to run: of the same warp if any can, else of the next warp around; null if none can.
static Fiber *next_fiber(Worker &w, uint32_t warp) {
  if (!w.ready_warps) return nullptr;
  if (!(w.ready_warps >> warp & 1)) {
    uint32_t later = w.ready_warps & ~((2u << warp) - 1);
    warp = __builtin_ctz(later ? later : w.ready_warps);
  }
  Warp &chosen = w.warps[warp];
  uint32_t lane = __builtin_ctz(chosen.ready);
  chosen.ready &= chosen.ready - 1;
  if (!chosen.ready) w.ready_warps &= ~(1u << warp);
  return &w.fibers[warp * WARP_SIZE + lane];
}

static void check_stack(Fiber &f) {
  if (__builtin_expect(*(uint32_t *)f.stack != CANARY, 0)) {
    *(uint32_t *)f.stack = CANARY;
    stop_launch(STACK_OVERFLOW);
  }
}

void yield() {
  Worker &w = *worker;
  Fiber &self = *w.current;
  check_stack(self);
  if (__builtin_expect(w.launch->stop != FINISHED, 0)) abandon();
  Fiber *next = next_fiber(w, self.index / WARP_SIZE);
  if (next == &self) {
    self.standing = RUNNING;
    return;
  }
  w.current = next;
  if (next) next->standing = RUNNING;
  treadle_emu_switch(&self.sp, next ? next->sp : w.home);
  if (__builtin_expect(w.launch->stop != FINISHED, 0)) abandon();
}

void poll(uint64_t pc) {
  constexpr uint32_t EVERY = 64;
  Worker &w = *worker;
  if (++w.polls % EVERY) return;
  // Whoever waits with atomic operations keeps copies from arriving when nothing else can run.
  if (w.hopper && w.hopper->num_loads) land(w, random(*w.hopper, w.hopper->num_loads));
  if (!w.ready_warps) return;
  Fiber &self = *w.current;
  uint32_t number = self.index / WARP_SIZE, lane = self.index % WARP_SIZE;
  // Everyone has a turn: first the later lanes of the warp, then the warps around.
  Warp &own = w.warps[number];
  uint32_t later = own.ready & ~((2u << lane) - 1), earlier = own.ready & ~later;
  own.ready = later;
  w.ready_warps = later ? w.ready_warps | 1u << number : w.ready_warps & ~(1u << number);
  Fiber *next = next_fiber(w, number);
  own.ready |= earlier | lane_bit(self);
  w.ready_warps |= 1u << number;
  if (!next) next = next_fiber(w, number);  // an earlier lane: some other fiber is ready
  self.pc = pc;
  self.standing = READY;
  w.current = next;
  next->standing = RUNNING;
  check_stack(self);
  treadle_emu_switch(&self.sp, next->sp);
  if (__builtin_expect(w.launch->stop != FINISHED, 0)) abandon();
}

void abandon() {
  Worker &w = *worker;
  w.abandoned = true;
  w.in_runtime = 1;
  void *nowhere;
  treadle_emu_switch(&nowhere, w.home);
  __builtin_unreachable();
}

void stop_launch(Outcome outcome) {
  uint32_t expected = FINISHED;
  __atomic_compare_exchange_n((uint32_t *)&worker->launch->stop, &expected, outcome, false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
}

static void fiber_main() {
  Worker &w = *worker;
  w.launch->request->entry(w.launch->request->arguments);
  Fiber &self = *w.current;
  if (self.async.count) finish_copies(w, self, ~0u);
  if (w.hopper) leave_hopper(w);
  check_stack(self);
  self.standing = LEFT;
  w.warps[self.index / WARP_SIZE].left |= lane_bit(self);
  w.left++;
  Fiber *next = next_fiber(w, self.index / WARP_SIZE);
  w.current = next;
  if (next) next->standing = RUNNING;
  void *nowhere;
  treadle_emu_switch(&nowhere, next ? next->sp : w.home);
  __builtin_unreachable();
}

static void start_fibers(Worker &w) {
  const uint32_t *dim = w.launch->request->block;
  memset(w.warps, 0, sizeof w.warps);
  w.at_barrier = w.left = 0;
  begin_order(w);
  if (w.hopper) begin_hopper(w);
  w.abandoned = false;
  w.ready_warps = 0;
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    Fiber &f = w.fibers[i];
    f.index = i;
    f.x = i % dim[0];
    f.y = i / dim[0] % dim[1];
    f.z = i / dim[0] / dim[1];
    f.standing = NOT_STARTED;
    f.pc = f.line = 0;
    f.async.count = f.async.group = 0;
    *(uint32_t *)f.stack = CANARY;
    f.sp = prepare_stack(f.stack, STACK_BYTES, fiber_main);
    Warp &warp = w.warps[i / WARP_SIZE];
    warp.present |= lane_bit(f);
    warp.ready |= lane_bit(f);
    w.ready_warps |= 1u << (i / WARP_SIZE);
  }
}

static void open_barrier(Worker &w) {
  w.at_barrier = 0;
  begin_epoch(w);
  for (uint32_t i = 0; i < w.num_warps; ++i) wake(w, i, w.warps[i].present & ~w.warps[i].left);
}

// All threads that still run wait at a barrier that others will not reach: they have returned.
void resolve_barrier(Worker &w) {
  uint32_t gone[MAX_WARPS] = {}, line = 0;
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    if (w.fibers[i].standing == LEFT) gone[i / WARP_SIZE] |= lane_bit(w.fibers[i]);
    if (w.fibers[i].standing == AT_BARRIER && !line) line = w.fibers[i].line;
  }
  report_threads({DIVERGENCE_BARRIER, 0, 0, NO_BUFFER}, gone, line);
  open_barrier(w);
}

// Barriers of different lines met: threads of the second line are named.
static void check_places(Worker &w) {
  uint32_t line = w.fibers[0].line, other = 0;
  for (uint32_t i = 1; i < w.num_threads && !other; ++i) {
    if (w.fibers[i].line != line) other = w.fibers[i].line;
  }
  if (!other) return;
  uint32_t there[MAX_WARPS] = {};
  for (uint32_t i = 0; i < w.num_threads; ++i) {
    if (w.fibers[i].line == other) there[i / WARP_SIZE] |= lane_bit(w.fibers[i]);
  }
  report_threads({DIVERGENCE_PLACES, 0, 0, NO_BUFFER}, there, line, other);
}

void run_block(Worker &w) {
  start_fibers(w);
  if (w.launch->request->checks) poison_shared(w);
  if (w.counting) start_counting_block(w);
  if (w.cluster) meet_members(w);
  while (!w.cluster || take_turn(w)) {
    Fiber *first = next_fiber(w, 0);
    if (first) {
      w.current = first;
      first->standing = RUNNING;
      treadle_emu_switch(&w.home, first->sp);
    }
    if (first && w.counting && w.left == w.num_threads) finish_requests(w);
    const bool open = w.left < w.num_threads || w.cluster;
    if (open && w.launch->stop != FINISHED) w.abandoned = true;
    if (w.abandoned || (w.left == w.num_threads && !w.cluster)) break;
    if (w.counting && resume_full_lanes(w)) continue;
    if (w.cluster && settle_turn(w)) continue;
    if (w.cluster) break;
    if (w.hopper && resolve_hopper(w)) continue;
    if (!resolve_collective(w)) resolve_barrier(w);
  }
  if (w.cluster) end_cluster(w, w.abandoned);
}

}  // namespace emu

using namespace emu;

extern "C" void treadle_emu_barrier(uint32_t line) {
  Worker &w = *worker;
  Fiber &self = *w.current;
  self.pc = 0;
  self.line = line;
  if (++w.at_barrier < w.num_threads) {
    self.standing = AT_BARRIER;
    yield();
    return;
  }
  if (w.launch->request->checks) check_places(w);
  if (w.counting) {
    count_barrier(w, line);
    finish_requests(w);
  }
  open_barrier(w);
  yield();
}

struct Triple {
  uint32_t x, y, z;
};
extern "C" Triple treadle_emu_thread() { return {worker->current->x, worker->current->y, worker->current->z}; }
extern "C" Triple treadle_emu_block() { return {worker->block_x, worker->block_y, worker->block_z}; }
extern "C" Triple treadle_emu_block_dim() {
  const uint32_t *d = worker->launch->request->block;
  return {d[0], d[1], d[2]};
}
extern "C" Triple treadle_emu_grid_dim() {
  const uint32_t *d = worker->launch->request->grid;
  return {d[0], d[1], d[2]};
}
