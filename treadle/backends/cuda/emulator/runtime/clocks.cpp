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
  uint32_t *lanes = w.clocks.of(thread) + w.clocks.own(warp * WARP_SIZE);
  for (uint32_t rest = w.warps[warp].present; rest; rest &= rest - 1) {
    const uint32_t other = __builtin_ctz(rest), known = known_of_lane(w, warp, lane, other);
    lanes[other] = known > lanes[other] ? known : lanes[other];
  }
  lanes[lane] = end;
}

// What a clock says of the threads of a block.
void forget_epochs(const Worker &w, uint32_t *clock) {
  if (!clock) return;
  for (uint32_t section = 0; section < 3; ++section) {
    memset(clock + section * w.clocks.threads + w.clocks.first, 0, w.num_threads * sizeof(uint32_t));
  }
}

// The same of all clocks that another block of the cluster, or this one, keeps.
void forget_epochs_in(const Worker &w, Worker &member) {
  if (!member.hopper) return;
  Hopper &h = *member.hopper;
  for (uint32_t t = 0; t < member.num_threads; ++t) forget_epochs(w, member.clocks.of(t));
  for (uint32_t i = 0; i < h.num_barriers; ++i) {
    forget_epochs(w, h.barriers[i].gathered.clock);
    forget_epochs(w, h.barriers[i].released.clock);
  }
  for (NamedBarrier &named : h.named) {
    forget_epochs(w, named.gathered.clock);
    forget_epochs(w, named.released.clock);
  }
  for (Warpgroup &group : h.groups) group.version++;
}

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

void leave_clock(Worker &w) {
  if (w.hopper->left) join(w.hopper->left, w.clocks.of(w.current->index), w.clocks.width);
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
  w.clocks.of(thread)[w.clocks.fenced(w.clocks.own(thread))] = tick(w.warps[thread / WARP_SIZE]);
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
  for (uint32_t n = 0; n < WARPGROUP; ++n) w.clocks.of(first + n)[w.clocks.own(first + n)] = 0;
  return group.least;
}

const uint32_t *with_own(Worker &w) {
  if (!w.clocks.all) return nullptr;
  complete_own(w, w.current->index, ~0u);
  return w.clocks.of(w.current->index);
}

void forget_own(Worker &w) {
  if (w.clocks.all) w.clocks.of(w.current->index)[w.clocks.own(w.current->index)] = 0;
}

bool arrived(const Worker &w, const uint32_t *clock, const Cell &cell) {
  // `w` has the cell; the clock may be another block's.
  const uint64_t number = (uint64_t)(&cell - w.shared.cells);
  const uint8_t *memory = w.shared.low + number * w.shared.granule;
  const Tag *tag = tag_of(w, memory);
  return !tag || clock[w.clocks.phases(tag->barrier)] > tag->phase;
}

Readable readable(const Worker &w, const uint32_t *clock, const Cell &cell, const Slot &now) {
  const Slot &before = cell.write;
  if (before.is_async()) return arrived(w, clock, cell) ? MAY_READ : NOT_ORDERED;
  const uint32_t own = w.clocks.own(before.thread()), fenced = clock[w.clocks.fenced(own)];
  if (before.epoch == now.epoch) {
    if (clock[own] <= before.warp_epoch()) return NOT_ORDERED;
    return fenced > before.warp_epoch() ? MAY_READ : NOT_FENCED;
  }
  const FencedBefore &last = w.hopper->fenced_before[before.thread()];
  const bool was = last.until && (last.epoch > before.epoch || (last.epoch == before.epoch && last.until > before.warp_epoch()));
  return was || fenced ? MAY_READ : NOT_FENCED;
}

void begin_clock_epoch(Worker &w) {
  if (!w.clocks.all) return;
  Hopper &h = *w.hopper;
  for (uint32_t t = 0; t < w.num_threads; ++t) {
    const uint32_t fenced = w.clocks.of(t)[w.clocks.fenced(w.clocks.own(t))];
    if (fenced) h.fenced_before[t] = {w.epoch, fenced};
    if (t) join(w.clocks.of(0), w.clocks.of(t), w.clocks.width);
  }
  for (uint32_t t = 1; t < w.num_threads; ++t) memcpy(w.clocks.of(t), w.clocks.of(0), w.clocks.width * sizeof(uint32_t));
  forget_epochs_in(w, w);
  for (uint32_t i = 0; w.cluster && i < w.cluster->size; ++i) forget_epochs_in(w, *w.cluster->members[i]);
  if (w.cluster) forget_epochs(w, w.cluster->barrier.gathered.clock);
  if (w.cluster) forget_epochs(w, w.cluster->barrier.released.clock);
  for (Warpgroup &group : h.groups) {
    for (uint32_t i = 0; group.products && i < MOST_PRODUCTS; ++i) group.products[i].until = 0;
  }
}

}  // namespace emu
