// What threads of a block know of each other through barriers that are not the whole block's.
#include <stdlib.h>
#include <string.h>

#include "concurrent.h"
#include "hopper.h"

namespace emu {
namespace {

void join(uint32_t *to, const uint32_t *from, uint32_t width) {
  for (uint32_t i = 0; i < width; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
}

// Adds what `__syncwarp` has told the thread of its warp, and of itself all before `end`.
void complete_own(Worker &w, uint32_t thread, uint32_t end) {
  const uint32_t warp = thread / WARP_SIZE, lane = thread % WARP_SIZE;
  uint32_t *lanes = w.clocks.of(thread) + warp * WARP_SIZE;
  for (uint32_t rest = w.warps[warp].present; rest; rest &= rest - 1) {
    const uint32_t other = __builtin_ctz(rest), known = known_of_lane(w, warp, lane, other);
    lanes[other] = known > lanes[other] ? known : lanes[other];
  }
  lanes[lane] = end;
}

void forget_epochs(uint32_t *clock, uint32_t threads) { memset(clock, 0, 3 * threads * sizeof(uint32_t)); }

}  // namespace

uint32_t *new_clock(Worker &w) {
  if (!w.clocks.all) return nullptr;
  uint32_t *made = (uint32_t *)calloc(w.clocks.width, sizeof(uint32_t));
  if (!made) stop_launch(OUT_OF_MEMORY);
  return made;
}

void publish(Worker &w, Knowledge &to) {
  if (!to.clock) return;
  const uint32_t thread = w.current->index;
  complete_own(w, thread, tick(w.warps[thread / WARP_SIZE]));
  join(to.clock, w.clocks.of(thread), w.clocks.width);
  to.known = gather_known(to.known);
}

void copy(Worker &w, Knowledge &to, const Knowledge &from) {
  if (to.clock) memcpy(to.clock, from.clock, w.clocks.width * sizeof(uint32_t));
  to.known = from.known;
}

void learn(Worker &w, const Knowledge &from) {
  if (!from.clock) return;
  join(w.clocks.of(w.current->index), from.clock, w.clocks.width);
  learn_known(from.known);
  w.hopper->groups[w.current->index / WARPGROUP].version++;
}

void join_lanes(Worker &w, uint32_t warp, uint32_t lanes) {
  uint32_t *all = w.clocks.of(warp * WARP_SIZE + (uint32_t)__builtin_ctz(lanes));
  for (uint32_t rest = lanes & (lanes - 1); rest; rest &= rest - 1) {
    join(all, w.clocks.of(warp * WARP_SIZE + (uint32_t)__builtin_ctz(rest)), w.clocks.width);
  }
  for (uint32_t rest = lanes & (lanes - 1); rest; rest &= rest - 1) {
    memcpy(w.clocks.of(warp * WARP_SIZE + (uint32_t)__builtin_ctz(rest)), all, w.clocks.width * sizeof(uint32_t));
  }
  w.hopper->groups[warp * WARP_SIZE / WARPGROUP].version++;
}

void fence_for_copies(Worker &w) {
  if (!w.clocks.all) return;
  const uint32_t thread = w.current->index;
  w.clocks.of(thread)[w.clocks.fenced(thread)] = tick(w.warps[thread / WARP_SIZE]);
  w.hopper->groups[thread / WARPGROUP].version++;
}

const uint32_t *least_of(Worker &w, uint32_t warpgroup) {
  Warpgroup &group = w.hopper->groups[warpgroup];
  if (!w.clocks.all) return nullptr;
  if (!group.least && !(group.least = new_clock(w))) return nullptr;
  if (group.version == group.checked_version) return group.least;
  group.checked_version = group.version;
  const uint32_t first = warpgroup * WARPGROUP;
  for (uint32_t n = 0; n < WARPGROUP; ++n) {
    // What a thread did itself is ordered before all that it does.
    complete_own(w, first + n, ~0u);
    const uint32_t *clock = w.clocks.of(first + n);
    if (n == 0) memcpy(group.least, clock, w.clocks.width * sizeof(uint32_t));
    for (uint32_t i = 0; n && i < w.clocks.width; ++i) group.least[i] = clock[i] < group.least[i] ? clock[i] : group.least[i];
  }
  for (uint32_t n = 0; n < WARPGROUP; ++n) w.clocks.of(first + n)[first + n] = 0;
  return group.least;
}

const uint32_t *with_own(Worker &w) {
  if (!w.clocks.all) return nullptr;
  complete_own(w, w.current->index, ~0u);
  return w.clocks.of(w.current->index);
}

void forget_own(Worker &w) {
  if (w.clocks.all) w.clocks.of(w.current->index)[w.current->index] = 0;
}

bool arrived(const Worker &w, const uint32_t *clock, const Cell &cell) {
  const uint64_t number = (uint64_t)(&cell - w.shared.cells);
  const uint8_t *memory = w.shared.low + number * w.shared.granule;
  const Tag *tag = tag_of(w, memory);
  return !tag || clock[w.clocks.phases(tag->barrier)] > tag->phase;
}

Readable readable(const Worker &w, const uint32_t *clock, const Cell &cell, const Slot &now) {
  const Slot &before = cell.write;
  if (before.is_async()) return arrived(w, clock, cell) ? MAY_READ : NOT_ORDERED;
  const uint32_t fenced = clock[w.clocks.fenced(before.thread())];
  if (before.epoch == now.epoch) {
    if (clock[before.thread()] <= before.warp_epoch()) return NOT_ORDERED;
    return fenced > before.warp_epoch() ? MAY_READ : NOT_FENCED;
  }
  const FencedBefore &last = w.hopper->fenced_before[before.thread()];
  const bool was = last.until && (last.epoch > before.epoch || (last.epoch == before.epoch && last.until > before.warp_epoch()));
  return was || fenced ? MAY_READ : NOT_FENCED;
}

void begin_clock_epoch(Worker &w) {
  if (!w.clocks.all) return;
  Hopper &h = *w.hopper;
  const uint32_t threads = w.clocks.threads;
  uint32_t *phases = w.clocks.of(0) + 3 * threads;
  for (uint32_t t = 0; t < threads; ++t) {
    uint32_t *clock = w.clocks.of(t);
    if (clock[w.clocks.fenced(t)]) h.fenced_before[t] = {w.epoch, clock[w.clocks.fenced(t)]};
    join(phases, clock + 3 * threads, MOST_BARRIERS);
  }
  for (uint32_t t = 0; t < threads; ++t) {
    forget_epochs(w.clocks.of(t), threads);
    if (t) memcpy(w.clocks.of(t) + 3 * threads, phases, MOST_BARRIERS * sizeof(uint32_t));
  }
  for (uint32_t i = 0; i < h.num_barriers; ++i) {
    forget_epochs(h.barriers[i].gathered.clock, threads);
    forget_epochs(h.barriers[i].released.clock, threads);
  }
  for (NamedBarrier &named : h.named) {
    if (!named.gathered.clock) continue;
    forget_epochs(named.gathered.clock, threads);
    forget_epochs(named.released.clock, threads);
  }
  for (Warpgroup &group : h.groups) {
    group.version++;
    for (uint32_t i = 0; group.products && i < MOST_PRODUCTS; ++i) group.products[i].until = 0;
  }
}

}  // namespace emu
