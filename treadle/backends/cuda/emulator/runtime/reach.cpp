// Searches what a thread has learnt for a publication of an access.
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

void add(Reach &reach, const Publication *publication) {
  void **first = reach.blocks.at(publication->block);
  if (reach.num_items == reach.capacity) {
    uint32_t capacity = reach.capacity ? reach.capacity * 2 : 64;
    void *grown = realloc(reach.items, capacity * sizeof *reach.items);
    if (!grown) return;
    reach.items = (Reach::Item *)grown;
    reach.capacity = capacity;
  }
  reach.items[reach.num_items++] = {publication, (uint32_t)(uintptr_t)*first};
  *first = (void *)(uintptr_t)reach.num_items;
}

// The sets still to be looked at, each as one of the block that learnt of it.
struct Stack {
  struct Entry {
    const Known *known;
    uint32_t block;
  } *entries;
  uint32_t count, capacity;

  void push(const Known *known, uint32_t block) {
    if (!known) return;
    if (count == capacity) {
      uint32_t larger = capacity ? capacity * 2 : 256;
      void *grown = realloc(entries, larger * sizeof *entries);
      if (!grown) return;
      entries = (Entry *)grown;
      capacity = larger;
    }
    entries[count++] = {known, block};
  }
};

void collect_publications(Reach &reach, const Known *root, uint32_t block) {
  reach.root = root;
  reach.blocks.clear();
  reach.visited.clear();
  reach.num_items = 0;
  Stack stack = {};
  stack.push(root, block);
  while (stack.count) {
    const auto [known, own] = stack.entries[--stack.count];
    void **visited = reach.visited.at(known->number << 32 | own);
    if (*visited) continue;
    *visited = &reach;
    stack.push(known->left, own);
    stack.push(known->right, own);
    if (!known->release) continue;
    const Release &release = *known->release;
    const Publication *p = release.published[release.block == own ? BLOCK_SCOPE : DEVICE_SCOPE];
    for (; p; p = p->earlier) {
      add(reach, p);
      stack.push(p->known, p->block);
    }
  }
  free(stack.entries);
}

bool reached_from(Reach &reach, const Known *root, const Worker &w, const Slot &slot) {
  if (!root) return false;
  if (reach.root != root) collect_publications(reach, root, w.block + 1);
  for (uint64_t i = (uint64_t)(uintptr_t)reach.blocks.find(slot.block); i; i = reach.items[i - 1].next) {
    if (contains(*reach.items[i - 1].publication, slot)) return true;
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
  reach = {};
}

}  // namespace emu
