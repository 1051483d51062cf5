// The state of a launch: one Worker a core runs blocks; a block is up to 1024 fibers, one a CUDA thread.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "counters.h"
#include "order.h"
#include "shadow.h"

namespace emu {

struct Worker;

// A warp-wide operation that a lane waits for. The last lane to arrive runs it for all.
struct Collective {
  void (*run)(Worker &worker, uint32_t warp, uint32_t lanes);
  uint32_t mask;
  bool whole;         // needs all 32 lanes
  uint64_t pc;
  void *data;         // the lane's operands and result
};

// An asynchronous copy that was issued and not yet waited for.
struct AsyncCopy {
  uint8_t *destination;
  uint32_t bytes;
  uint32_t group;
  uint64_t pc;
  uint8_t data[16];
};

struct AsyncQueue {
  AsyncCopy *copies;
  uint32_t count, capacity;
  uint32_t group;     // the group that the next copy joins
};

struct Fiber {
  void *sp;
  uint8_t *stack;
  Collective *collective;
  uint64_t pc;        // where it waits, unless that is a barrier
  uint32_t line;      // of the last barrier it came to, in the text
  uint32_t index;     // within the block
  uint32_t x, y, z;
  Standing standing;
  AsyncQueue async;
};

struct Warp {
  uint32_t present;   // lanes that exist
  uint32_t ready;     // may run
  uint32_t waiting;   // in a collective
  uint32_t left;      // ended
  uint32_t epoch;     // counts its __syncwarps and fences since the block's last barrier
  uint32_t ordered;   // what any lane did in earlier epochs than this is ordered for all
  bool partial;       // there was a __syncwarp of some lanes: Worker::lanes knows more
};

// By two lanes: what the second did in earlier epochs than this is ordered for the first.
struct LaneOrder {
  uint32_t known[WARP_SIZE][WARP_SIZE];
};

// For each thread, what of the other threads of its block and cluster is ordered before it, beyond what epochs say. A clock has sections:
// by thread, the warp epoch before which all that it did is ordered; the same of what its copies and products read; the
// same of what it wrote and made visible to copies and products; and by mbarrier, how many phases have ended.
constexpr uint32_t MOST_BARRIERS = 128;
struct Clocks {
  uint32_t *all;      // of the block's threads; null until they are needed
  uint32_t threads;   // of the cluster, block by block
  uint32_t first;     // of them in this block
  uint32_t width, first_phase;
  uint32_t *of(uint32_t thread) const { return all + (uint64_t)thread * width; }
  uint32_t own(uint32_t thread) const { return first + thread; }
  uint32_t reads(uint32_t place) const { return threads + place; }
  uint32_t fenced(uint32_t place) const { return 2 * threads + place; }
  uint32_t phases(uint32_t barrier) const { return first_phase + barrier; }
};

struct Cluster;
struct Hopper;
struct Launch;

struct Worker {
  Launch *launch;
  Fiber *current;
  void *home;         // stack pointer of the loop over blocks
  uint32_t num_threads, num_warps;
  uint32_t ready_warps;
  uint32_t at_barrier, left;
  uint32_t epoch;     // counts barriers of the block
  uint32_t block, block_x, block_y, block_z;
  bool abandoned;
  volatile int in_runtime;  // holds a lock: a signal must not throw it out
  uint32_t polls;           // atomic operations and volatile reads, which a thread may be waiting with
  SharedShadow shared;
  Counting *counting;       // null where nothing is counted
  BlockOrder order;
  Clocks clocks;
  Hopper *hopper;           // null until a function of treadle_hopper.h is called
  Cluster *cluster;         // whose blocks take turns; null where a block is alone
  uint32_t rank;            // of the block in its cluster
  Warp warps[MAX_WARPS];
  LaneOrder lanes[MAX_WARPS];
  Fiber fibers[MAX_THREADS];
};

struct Launch {
  Request *request;
  uint64_t next_block, num_blocks;
  uint64_t module_low, module_high;
  GlobalShadow global;
  LaunchOrder order;
  bool given_pattern;       // before the launch some buffer had the pattern of unwritten memory
  volatile uint32_t stop;   // an Outcome other than FINISHED ends the launch
  uint32_t running;         // workers
};

extern __thread Worker *worker __attribute__((tls_model("initial-exec")));

constexpr size_t STACK_BYTES = 128 * 1024;

// switch.cpp
extern "C" void treadle_emu_switch(void **save, void *load);
void *prepare_stack(uint8_t *stack, size_t bytes, void (*start)());

// cluster.cpp
void open_cluster(Cluster &cluster, Worker *members, uint32_t size);
void close_cluster(Cluster &cluster);
void break_cluster(Cluster &cluster);     // some member could not be started
uint64_t next_cluster(Worker &w);         // number of the next one, the same for all members
void meet_members(Worker &w);
bool take_turn(Worker &w);                // false where the cluster has ended
bool settle_turn(Worker &w);              // the current member can run no further; false where none can
void end_cluster(Worker &w, bool failed);
uint32_t rank_of(const Cluster &cluster, uint32_t block);  // of a slot's; NO_RANK
bool unordered_in_cluster(const Worker &w, uint32_t rank, const Slot &before, const Slot &now);
constexpr uint32_t NO_RANK = ~0u, MOST_BLOCKS = 8;

// block.cpp
void resolve_barrier(Worker &w);
void run_block(Worker &w);
void yield();                        // the current fiber waits for something
void poll(uint64_t pc);              // lets others run now and then: this fiber may wait for what they do
[[noreturn]] void abandon();         // ends the block from within a fiber
void stop_launch(Outcome outcome);
void wake(Worker &w, uint32_t warp, uint32_t lanes);

// warp.cpp
void collect(Collective &own);
bool resolve_collective(Worker &w);  // runs one with the lanes that are there; false if none waits

// cp_async.cpp
void finish_copies(Worker &w, Fiber &f, uint32_t before_group);

// signals.cpp
void install_signals();
void restore_signals();
void interrupt(unsigned long thread);

// Whether accesses matter to anybody: to a check, or to a counter.
inline bool observed(const Worker &w) { return w.counting || w.launch->request->checks; }

// Counts and checks one access of the current thread.
inline void observe(const void *address, uint32_t bytes, Access access, uint64_t pc) {
  if (__builtin_expect(!worker, 0)) return;  // the text's own initialisation
  if (worker->counting) log_access(*worker, address, bytes, access, pc);
  if (worker->launch->request->checks) check_access(address, bytes, access, pc);
}

inline bool checks(uint32_t what) { return (worker->launch->request->checks & what) != 0; }

}  // namespace emu
