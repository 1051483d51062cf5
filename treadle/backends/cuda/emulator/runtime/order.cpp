// What barriers and __syncwarps order.
#include "order.h"

#include <string.h>

#include "state.h"

namespace emu {

uint32_t tick(Warp &warp) {
  if (warp.epoch < LAST_WARP_EPOCH) return ++warp.epoch;
  return LAST_WARP_EPOCH + 1;
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
  if (w.clocks.all) join_lanes(w, warp, lanes);
}

void begin_epoch(Worker &w) {
  if (w.order.active) share_in_block(w);
  if (w.hopper) begin_hopper_epoch(w);
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
  memset((void *)order.threads, 0, w.num_threads * sizeof(ThreadOrder));
  order.used = order.active = false;
  order.known = order.seen = nullptr;
  order.published[BLOCK_SCOPE] = order.published[DEVICE_SCOPE] = nullptr;
  order.thread_reach.root = order.block_reach.root = nullptr;
}

}  // namespace emu
