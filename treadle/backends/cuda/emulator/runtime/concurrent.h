// Whether two accesses are ordered; inline, as every access asks it.
#pragma once
#include "state.h"

namespace emu {

// What the lane `other` did in earlier epochs of the warp than this is ordered for `lane`.
inline uint32_t known_of_lane(const Worker &w, uint32_t warp, uint32_t lane, uint32_t other) {
  const Warp &each = w.warps[warp];
  if (!each.partial) return each.ordered;
  uint32_t known = w.lanes[warp].known[lane][other];
  return known > each.ordered ? known : each.ordered;
}

inline bool may_be_concurrent(const Slot &before, const Slot &now) {
  return before.block && (before.block != now.block || (before.epoch == now.epoch && (before.thread() != now.thread() || before.is_async())));
}

// Of accesses that may be concurrent.
inline bool unordered(Worker &w, const Slot &before, const Slot &now) {
  if (w.clocks.all && before.block == now.block) {
    const uint32_t own = w.clocks.own(before.thread()), place = before.is_async() ? w.clocks.reads(own) : own;
    if (before.warp_epoch() < w.clocks.of(now.thread())[place]) return false;
    if (before.is_async()) return true;
  }
  if (w.cluster && w.clocks.all && before.block != now.block) {
    const uint32_t rank = rank_of(*w.cluster, before.block);
    if (rank != NO_RANK && !unordered_in_cluster(w, rank, before, now)) return false;
  }
  uint32_t warp = now.thread() / WARP_SIZE;
  if (before.block == now.block && before.thread() / WARP_SIZE == warp &&
      before.warp_epoch() < known_of_lane(w, warp, now.thread() % WARP_SIZE, before.thread() % WARP_SIZE)) {
    return false;
  }
  return !w.order.used || !reached(w, before);
}

inline bool concurrent(Worker &w, const Slot &before, const Slot &now) {
  return may_be_concurrent(before, now) && unordered(w, before, now);
}

}  // namespace emu
