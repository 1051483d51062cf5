// Which accesses of different threads are ordered: by barriers, by __syncwarp, and by fences and atomics.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "map.h"
#include "shadow.h"

namespace emu {

struct Worker;
struct Launch;
struct Warp;

enum Scope : uint32_t { BLOCK_SCOPE, DEVICE_SCOPE, SCOPES };

struct Known;

// Accesses that a fence has published: all of the block's before an epoch, and in that epoch those of `count`
// threads from `first` before an epoch of their warp. Immutable.
struct Publication {
  uint32_t block;                // index + 1
  uint32_t epoch, first, count;
  const Known *known;            // what was known where the fence was
  const Publication *earlier;    // of the same block
  uint32_t until[];
};

// What an atomic operation hands to those who see its result. Immutable.
struct Release {
  uint32_t block;
  const Publication *published[SCOPES];
};

// A set of releases. Immutable, so that sets share their parts. Either what was released at a location up to some
// operation: a release, and what was there before (`left`); or two other sets together.
struct Known {
  uint32_t number;
  uint32_t chain;                // the number of the first set at this location since a store; 0 for two together
  const Release *release;
  const Known *left, *right;
};

// What the fences of a thread since the last barrier have published.
struct Fenced {
  bool any;
  const Known *known;
  uint32_t until[WARP_SIZE];     // for each lane of its warp, an epoch of the warp
  const uint32_t *others;        // the same for each thread of the block; null without barriers of a part of it
};

// What a thread has learnt and published since the last barrier of its block.
struct ThreadOrder {
  static constexpr uint32_t MOST_WATCHED = 8, MOST_GIVEN = 8;
  const Known *known;
  const Known *seen;             // by volatile reads; known after the next fence
  uint64_t watched[MOST_WATCHED];  // locations of volatile reads since the last fence
  uint32_t num_watched;
  const Release *release;        // as of now; null where that has to be made
  uint32_t given[MOST_GIVEN];    // chains that `release` is part of
  Fenced fenced[SCOPES];
};

// The publications that can be reached from a set, as far as they have been looked for.
struct Reach {
  struct Item {
    const Publication *publication;
    uint32_t next;               // index + 1 of another of the same block
  };
  struct Open {
    const Known *known;
    uint32_t block;              // that learnt of it
  };
  const Known *root;
  Map blocks, visited;
  Item *items;
  Open *open;                    // a stack of what is still to be looked at
  uint32_t num_items, items_capacity, num_open, open_capacity;
};

// The same for a block, up to its last barrier.
struct BlockOrder {
  ThreadOrder *threads;          // null until the first fence or volatile read
  bool used;                     // by this block
  bool active;                   // since the last barrier
  const Known *known, *seen;
  const Publication *published[SCOPES];
  Reach thread_reach, block_reach;
};

// Per launch: the locations of atomics, and all memory for the above.
struct LaunchOrder {
  Map locations;
  struct Chunk *chunks;
  uint32_t last_number;
};

// order.cpp
uint32_t tick(Warp &warp);           // begins an epoch of the warp; returns what is later than all before it
void order_lanes(Worker &w, uint32_t warp, uint32_t lanes);
void begin_epoch(Worker &w);         // at a barrier
void begin_order(Worker &w);         // with a block

// clocks.cpp
void join_lanes(Worker &w, uint32_t warp, uint32_t lanes);
void begin_hopper_epoch(Worker &w);

// fences.cpp
void fence(Scope scope);
// What fences have taught the current thread, with what is known already; and back to it.
const Known *gather_known(const Known *before);
void learn_known(const Known *known);
void watch(const void *address);     // a volatile read
void store(const void *address);     // a volatile write
// Holds a lock from before a read-modify-write until after it, so that both see one order of operations.
class ReadModifyWrite {
 public:
  explicit ReadModifyWrite(const void *address);
  void wrote();
  ~ReadModifyWrite();

 private:
  const void *address_;
  bool held_;
};
void share_in_warp(Worker &w, uint32_t warp, uint32_t lanes);
void share_in_block(Worker &w);
void end_order(Launch &launch);

// reach.cpp
bool reached(Worker &w, const Slot &before);
void release_reach(Reach &reach);

}  // namespace emu
