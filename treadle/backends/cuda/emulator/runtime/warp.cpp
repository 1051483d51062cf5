// Operations of a whole warp: lanes wait until all lanes of their mask are there, the last one runs it for all.
#include <string.h>

#include "state.h"

namespace emu {

static inline bool same_operation(const Collective &a, const Collective &b) { return a.run == b.run && a.mask == b.mask; }

// The lanes of `lanes` that wait for the same operation as `own`.
static uint32_t partners(Worker &w, uint32_t warp, uint32_t lanes, const Collective &own) {
  uint32_t found = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    if (same_operation(*w.fibers[warp * WARP_SIZE + lane].collective, own)) found |= 1u << lane;
  }
  return found;
}

void collect(Collective &own) {
  Worker &w = *worker;
  Fiber &self = *w.current;
  uint32_t number = self.index / WARP_SIZE, bit = 1u << (self.index % WARP_SIZE);
  Warp &warp = w.warps[number];
  self.collective = &own;
  self.pc = own.pc;
  if (!(own.mask & bit)) {
    uint32_t threads[MAX_WARPS] = {};
    threads[number] = bit;
    report_threads({DIVERGENCE_MASK, own.pc, 0, NO_BUFFER}, threads);
    own.mask |= bit;
  }
  warp.waiting |= bit;
  uint32_t wanted = own.whole ? own.mask : own.mask & warp.present;
  if ((warp.waiting & wanted) == wanted && partners(w, number, wanted, own) == wanted) {
    own.run(w, number, wanted);
    wake(w, number, wanted & ~bit);
    warp.waiting &= ~bit;
    return;
  }
  self.standing = AT_WARP;
  yield();
}

bool resolve_collective(Worker &w) {
  for (uint32_t number = 0; number < w.num_warps; ++number) {
    Warp &warp = w.warps[number];
    if (!warp.waiting) continue;
    Collective &own = *w.fibers[number * WARP_SIZE + __builtin_ctz(warp.waiting)].collective;
    uint32_t lanes = partners(w, number, warp.waiting & own.mask, own);
    uint32_t missing[MAX_WARPS] = {};
    missing[number] = own.mask & ~lanes;
    report_threads({DIVERGENCE_WARP, own.pc, 0, NO_BUFFER}, missing);
    own.run(w, number, lanes);
    wake(w, number, lanes);
    return true;
  }
  return false;
}

namespace {

void *operands(Worker &w, uint32_t warp, uint32_t lane) {
  return w.fibers[warp * WARP_SIZE + lane].collective->data;
}

struct Shuffle {
  uint64_t value, result;
  int32_t mode, argument, width;
};

enum Mode { INDEX, UP, DOWN, XOR };

// The lane that a lane reads from: itself where the operation reaches out of its segment.
uint32_t source_lane(uint32_t lane, const Shuffle &s) {
  int own = (int)lane, first = own & ~(s.width - 1), last = first + s.width - 1;
  switch (s.mode) {
    case INDEX: return (uint32_t)(first | (s.argument & (s.width - 1)));
    case UP: return (uint32_t)(own - s.argument < first ? own : own - s.argument);
    case DOWN: return (uint32_t)(own + s.argument > last ? own : own + s.argument);
    default: return (uint32_t)((own ^ s.argument) > last ? own : (own ^ s.argument) & 31);
  }
}

void run_shuffle(Worker &w, uint32_t warp, uint32_t lanes) {
  uint32_t absent[MAX_WARPS] = {};
  const Collective &any = *w.fibers[warp * WARP_SIZE + __builtin_ctz(lanes)].collective;
  const uint32_t mask = any.mask;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    Shuffle &own = *(Shuffle *)operands(w, warp, lane);
    uint32_t from = source_lane(lane, own);
    if (lanes >> from & 1) {
      own.result = ((Shuffle *)operands(w, warp, from))->value;
    } else {
      // Trees by shuffles up and down read past their mask and drop what they get.
      bool dropped = (own.mode == UP || own.mode == DOWN) && !(mask >> from & 1);
      own.result = ~0ull;
      if (!dropped) absent[warp] |= 1u << from;
    }
  }
  if (absent[warp]) report_threads({DIVERGENCE_SOURCE, any.pc, 0, NO_BUFFER}, absent);
}

struct Vote {
  uint32_t predicate, ballot;
};

void run_vote(Worker &w, uint32_t warp, uint32_t lanes) {
  uint32_t ballot = 0;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    if (((Vote *)operands(w, warp, lane))->predicate) ballot |= 1u << lane;
  }
  for (uint32_t rest = lanes; rest; rest &= rest - 1) ((Vote *)operands(w, warp, __builtin_ctz(rest)))->ballot = ballot;
}

struct Match {
  uint64_t value;
  uint32_t lanes;
};

void run_match(Worker &w, uint32_t warp, uint32_t lanes) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    Match &own = *(Match *)operands(w, warp, __builtin_ctz(rest));
    own.lanes = 0;
    for (uint32_t each = lanes; each; each &= each - 1) {
      uint32_t lane = __builtin_ctz(each);
      if (((Match *)operands(w, warp, lane))->value == own.value) own.lanes |= 1u << lane;
    }
  }
}

void run_sync(Worker &w, uint32_t warp, uint32_t lanes) { order_lanes(w, warp, lanes); }

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" uint64_t treadle_emu_shuffle(uint32_t mask, uint64_t value, int32_t mode, int32_t argument, int32_t width) {
  Shuffle own = {value, 0, mode, argument, width};
  Collective collective = {run_shuffle, mask, false, (uint64_t)__builtin_return_address(0), &own};
  collect(collective);
  return own.result;
}

extern "C" uint32_t treadle_emu_ballot(uint32_t mask, int32_t predicate) {
  Vote own = {predicate != 0, 0};
  Collective collective = {run_vote, mask, false, (uint64_t)__builtin_return_address(0), &own};
  collect(collective);
  return own.ballot;
}

extern "C" uint32_t treadle_emu_match(uint32_t mask, uint64_t value) {
  Match own = {value, 0};
  Collective collective = {run_match, mask, false, (uint64_t)__builtin_return_address(0), &own};
  collect(collective);
  return own.lanes;
}

extern "C" void treadle_emu_syncwarp(uint32_t mask) {
  Collective collective = {run_sync, mask, false, (uint64_t)__builtin_return_address(0), nullptr};
  collect(collective);
}

extern "C" uint32_t treadle_emu_active_mask() {
  const Warp &warp = worker->warps[worker->current->index / WARP_SIZE];
  return warp.present & ~warp.left;
}
