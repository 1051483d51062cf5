// Searches what a thread has learnt for a publication of an access, no further than it has to.
#include <stdlib.h>

#include "order.h"
#include "state.h"

namespace emu {
namespace {

bool contains(const Publication &p, const Slot &slot) {
  if (slot.epoch != p.epoch) return slot.epoch < p.epoch;
  uint32_t at = slot.thread() - p.first;
  return at < p.count && slot.warp_epoch() < p.until[at];
}

// One more place at the end of an array; null, and the launch stops, where there is no memory.
template <typename T> T *append(T *&array, uint32_t &count, uint32_t &capacity) {
  if (count == capacity) {
    uint32_t larger = capacity ? capacity * 2 : 64;
    T *grown = (T *)realloc((void *)array, larger * sizeof(T));
    if (!grown) {
      stop_launch(OUT_OF_MEMORY);
      return nullptr;
    }
    array = grown;
    capacity = larger;
  }
  return &array[count++];
}

void open(Reach &reach, const Known *known, uint32_t block) {
  if (!known) return;
  Reach::Open *made = append(reach.open, reach.num_open, reach.open_capacity);
  if (made) *made = {known, block};
}

void add(Reach &reach, const Publication *publication) {
  void **first = reach.blocks.at(publication->block);
  Reach::Item *made = append(reach.items, reach.num_items, reach.items_capacity);
  if (!made) return;
  *made = {publication, (uint32_t)(uintptr_t)*first};
  *first = (void *)(uintptr_t)reach.num_items;
}

// Looks at one more set; true where it has a publication of the access.
bool step(Reach &reach, const Slot &slot) {
  const auto [known, own] = reach.open[--reach.num_open];
  void **visited = reach.visited.at((uint64_t)known->number << 32 | own);
  if (*visited) return false;
  *visited = &reach;
  open(reach, known->left, own);
  open(reach, known->right, own);
  if (!known->release) return false;
  const Release &release = *known->release;
  bool found = false;
  for (const Publication *p = release.published[release.block == own ? BLOCK_SCOPE : DEVICE_SCOPE]; p; p = p->earlier) {
    add(reach, p);
    open(reach, p->known, p->block);
    found = found || (p->block == slot.block && contains(*p, slot));
  }
  return found;
}

bool reached_from(Reach &reach, const Known *root, const Worker &w, const Slot &slot) {
  if (!root) return false;
  if (reach.root != root) {
    reach.root = root;
    reach.blocks.clear();
    reach.visited.clear();
    reach.num_items = reach.num_open = 0;
    open(reach, root, w.block + 1);
  }
  for (uint64_t i = (uint64_t)(uintptr_t)reach.blocks.find(slot.block); i; i = reach.items[i - 1].next) {
    if (contains(*reach.items[i - 1].publication, slot)) return true;
  }
  while (reach.num_open) {
    if (step(reach, slot)) return true;
  }
  return false;
}

}  // namespace

bool reached(Worker &w, const Slot &before) {
  BlockOrder &order = w.order;
  int held = w.in_runtime;
  w.in_runtime = 1;
  bool found = reached_from(order.block_reach, order.known, w, before) ||
               reached_from(order.thread_reach, order.threads[w.current->index].known, w, before);
  w.in_runtime = held;
  return found;
}

void release_reach(Reach &reach) {
  reach.blocks.release();
  reach.visited.release();
  free(reach.items);
  free(reach.open);
  reach = {};
}

}  // namespace emu
