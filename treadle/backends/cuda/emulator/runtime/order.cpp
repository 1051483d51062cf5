// Whether two accesses are ordered.
#include "order.h"

#include <string.h>

#include "state.h"

namespace emu {

uint32_t tick(Warp &warp) {
  if (warp.epoch < LAST_WARP_EPOCH) return ++warp.epoch;
  return LAST_WARP_EPOCH + 1;
}

uint32_t known_of_lane(const Worker &w, uint32_t warp, uint32_t lane, uint32_t other) {
  const Warp &each = w.warps[warp];
  uint32_t known = each.partial ? w.lanes[warp].known[lane][other] : 0;
  return known > each.ordered ? known : each.ordered;
}

bool concurrent(const Slot &before, const Slot &now) {
  if (!before.block) return false;
  Worker &w = *worker;
  if (before.block == now.block) {
    if (before.epoch != now.epoch || before.thread() == now.thread()) return false;
    uint32_t warp = now.thread() / WARP_SIZE;
    if (before.thread() / WARP_SIZE == warp &&
        before.warp_epoch() < known_of_lane(w, warp, now.thread() % WARP_SIZE, before.thread() % WARP_SIZE)) {
      return false;
    }
  }
  return !w.order.used || !reached(w, before);
}

void order_lanes(Worker &w, uint32_t warp, uint32_t lanes) {
  Warp &each = w.warps[warp];
  uint32_t end = tick(each);
  if (lanes == each.present) {
    each.ordered = end;
  } else {
    LaneOrder &order = w.lanes[warp];
    if (!each.partial) memset(&order, 0, sizeof order);
    each.partial = true;
    uint32_t all[WARP_SIZE] = {};
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const uint32_t *known = order.known[__builtin_ctz(rest)];
      for (uint32_t i = 0; i < WARP_SIZE; ++i) all[i] = known[i] > all[i] ? known[i] : all[i];
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1) all[__builtin_ctz(rest)] = end;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) memcpy(order.known[__builtin_ctz(rest)], all, sizeof all);
  }
  if (w.order.active) share_in_warp(w, warp, lanes);
}

void begin_epoch(Worker &w) {
  if (w.order.active) share_in_block(w);
  w.epoch++;
  for (uint32_t i = 0; i < w.num_warps; ++i) {
    w.warps[i].epoch = w.warps[i].ordered = 0;
    w.warps[i].partial = false;
  }
}

void begin_order(Worker &w) {
  BlockOrder &order = w.order;
  w.epoch = 0;
  if (!order.used) return;
  memset((void *)order.threads, 0, MAX_THREADS * sizeof(ThreadOrder));
  order.used = order.active = false;
  order.known = order.seen = nullptr;
  order.published[BLOCK_SCOPE] = order.published[DEVICE_SCOPE] = nullptr;
  order.thread_reach.root = order.block_reach.root = nullptr;
}

}  // namespace emu
