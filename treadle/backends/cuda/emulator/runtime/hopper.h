// What compute capability 9.0 adds to a block: barriers that count bytes, bulk copies, products of a warpgroup.
#pragma once
#include <pthread.h>

#include "state.h"

namespace emu {

// A window holds all of a block's shared variables, by addresses as matrix descriptors have them.
constexpr uint32_t WINDOW_BYTES = 1 << 18, WINDOW_START = 1024;
constexpr uint32_t CHUNK = 16;                 // bytes that swizzles move together
constexpr uint32_t NAMED_BARRIERS = 16;
constexpr uint32_t WARPGROUP = 128, MAX_WARPGROUPS = MAX_THREADS / WARPGROUP;
constexpr int64_t MOST_BYTES = (1 << 20) - 1;  // that a phase may wait for
constexpr uint32_t MOST_ARRIVALS = (1 << 20) - 1;

// As treadle_matrix numbers them.
enum Swizzle : uint32_t { SWIZZLE_NONE, SWIZZLE_128, SWIZZLE_64, SWIZZLE_32 };
inline uint32_t span_of(uint32_t swizzle) { return swizzle ? 256u >> swizzle : CHUNK; }
inline uint32_t swizzled(uint32_t address, uint32_t swizzle) {
  return swizzle ? address ^ ((address >> 7 & ((8u >> (swizzle - 1)) - 1)) << 4) : address;
}

// The 128 bytes of a treadle_tensor_map; treadle/target/tensor_map.py fills them. Innermost dimension first.
struct TensorMap {
  uint64_t base;
  uint8_t element_bytes, rank, swizzle, made;  // made: TENSOR_MAP_MADE
  uint32_t data_type;                          // of CUtensorMapDataType
  uint64_t extents[5];
  uint64_t strides[4];                         // bytes, of the dimensions but the innermost
  uint32_t box[5];                             // of a map of pixels: channels, pixels
  // Of a map of pixels, along the spatial dimensions: corners of the walk, and how far apart pixels are; 0 for a box.
  int16_t lower[3], upper[3];
  uint8_t steps[3], padding[5];
  bool walks() const { return steps[0] != 0; }
};
static_assert(sizeof(TensorMap) == 128, "a tensor map has 128 bytes");
constexpr uint8_t TENSOR_MAP_MADE = 0xa7;

// What threads hand on at barriers that are not the whole block's.
struct Knowledge {
  uint32_t *clock;
  const Known *known;  // through fences
};

struct Mbarrier {
  uint32_t address;    // in the window
  uint32_t count, left;
  int64_t bytes;
  uint32_t phase;      // how many have ended
  uint32_t thread;     // that initialised it
  bool published;      // to copies
  uint32_t arrivals;   // of the thread at the barrier of the cluster before that, or before its initialisation
  Slot made;           // its initialisation
  bool stored;         // other blocks' stores complete in the phase under way
  uint32_t stored_end; // the same of the last such phase: how many had ended with it; 0 for none
  uint64_t stored_pc;  // of the last such store
  uint32_t waiting[MAX_WARPS];
  Knowledge gathered;  // what those who arrived had done and knew
  Knowledge released;  // the same at the end of the last phase
};

struct NamedBarrier {
  uint32_t arrived, expected;
  uint32_t generation;
  uint32_t there[MAX_WARPS], waiting[MAX_WARPS];
  Knowledge gathered, released;
};

// A box, or pixels, on their way between global and shared memory.
struct TensorCopy {
  TensorMap map;
  int32_t at[5];
  int32_t offsets[3];  // of pixels
  uint32_t tile;       // in the window
  uint32_t bytes;      // of the box
  uint32_t barrier;    // of a load
  uint32_t group;      // of a store
  uint32_t until;      // of a store: the epoch behind its issue
  bool was_read;       // of a store: from shared memory
  uint8_t *data;       // then
  uint32_t thread;     // that issued it
  uint64_t pc;
};

// A few bytes on their way to shared memory, from a block of the cluster.
struct RemoteStore {
  uint32_t address;    // in the window
  uint32_t bytes;
  uint32_t barrier;
  uint32_t thread;     // that issued it
  uint64_t pc;
  uint8_t data[16];
};

struct TensorStores {
  TensorCopy *copies;
  uint32_t count, capacity, group;
};

// What treadle_wgmma says of a product in one number, as emulator_hopper.h packs it.
enum Kind : uint32_t { F16, BF16, TF32, F8E4M3, F8E5M2, S8, U8 };
struct Shape {
  uint32_t packed;
  uint32_t columns() const { return packed & 0xfff; }
  Kind a() const { return (Kind)(packed >> 12 & 15); }
  Kind b() const { return (Kind)(packed >> 16 & 15); }
  bool a_across() const { return packed >> 20 & 1; }  // does not lie along the terms
  bool b_across() const { return packed >> 21 & 1; }
  bool in_registers() const { return packed >> 22 & 1; }
  bool integers() const { return a() >= S8; }
  uint32_t terms() const { return a() == TF32 ? 8 : a() < TF32 ? 16 : 32; }
};

// 64 x N sums that products work on, from the first product's issue until its threads have them back. Row by row.
struct Sums {
  uint32_t users;      // threads that have not
  uint32_t values[64 * 256];
};

// One operand of a product in shared memory: 64 rows or N columns, of 32 bytes of terms each.
struct Product;
struct Matrix {
  uint64_t descriptor;
  uint32_t rows;
  bool across;
  uint32_t start, leading, stride, swizzle;
  Matrix(const Product &product, uint32_t operand);
  uint32_t chunks() const { return rows * 2; }
  uint32_t chunk(uint32_t n) const;  // its address in the window
  int64_t wrong() const;             // a number for what is wrong with the descriptor; 0 for nothing
};

constexpr uint32_t MOST_COLUMNS = 256, MOST_TERMS = 32;
struct Operands {
  float a[64][MOST_TERMS], b[MOST_TERMS][MOST_COLUMNS];
};

struct Product {
  uint64_t a, b, pc;
  Shape shape;
  bool keep;
  uint32_t issued;     // by how many threads
  uint32_t until;      // epoch behind its issue, of the thread that stands for what the warpgroup reads
  Sums *sums;
  uint32_t fragments[WARPGROUP][4];
};

constexpr uint32_t MOST_PRODUCTS = 64, MOST_SUMS = 64;
struct Warpgroup {
  Product *products;   // a ring, by number
  uint32_t computed, complete, issued;  // how many products are; complete: issued by all threads
  Sums *sums[MOST_SUMS];
  uint32_t num_sums;
  uint32_t waiting[MAX_WARPS];
  uint32_t version, checked_version;    // of what its threads know; of `least`
  uint32_t *least;     // what all of its threads know
};

// The accumulators of a thread that products write to.
struct HeldSums {
  uint32_t *memory;
  uint32_t words;
  uint32_t last;       // number of the last product on them
  bool flying, touched;
  Sums *sums;
  uint64_t pc;
};
constexpr uint32_t MOST_HELD = 16, MOST_GROUPS = 64;

// What a thread has under way.
struct Asynchronous {
  TensorStores stores;
  uint32_t issued;           // products
  uint32_t group_ends[MOST_GROUPS];  // the number behind the last product of each group, a ring
  uint32_t groups;
  bool fenced;
  uint32_t num_held;
  HeldSums held[MOST_HELD];
  uint32_t cluster_arrivals, cluster_waits;  // at the barrier of the cluster
  uint32_t registers;        // what treadle_registers_ asked for last; 0 for nothing
  uint64_t registers_pc;
};

// Who wrote 16 bytes of shared memory: meaningful while the shadow cell's last write is a copy's.
struct Tag {
  uint32_t barrier;
  uint32_t phase;      // whose end says that the bytes are there
  uint32_t swizzle;
};

struct Placed {
  uint32_t start;      // in the window
  uint32_t variable;
  uint8_t *memory;
  uint64_t bytes;
};

struct FencedBefore {
  uint32_t epoch, until;
};

// Blocks whose threads take turns.
struct Cluster {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  Worker *members[MOST_BLOCKS];
  uint32_t size, turn;
  uint32_t met, meeting;  // how many came, and to which meeting
  bool over, failed, broken;
  uint64_t number;        // of the cluster in the grid
  NamedBarrier barrier;   // of all threads
};

struct Hopper {
  uint8_t *anchor;
  Placed *placed;      // variables whose address was asked for, by address in the window
  uint32_t num_placed, window_end;
  uint16_t *barrier_at;  // by address / 8: index + 1
  Mbarrier barriers[MOST_BARRIERS];
  uint32_t num_barriers;
  NamedBarrier named[NAMED_BARRIERS];
  TensorCopy *loads;
  uint32_t num_loads, loads_capacity;
  RemoteStore *stores;  // to this block
  uint32_t num_stores, stores_capacity;
  Warpgroup groups[MAX_WARPGROUPS];
  Asynchronous *threads;
  Tag *tags;           // by address / CHUNK
  FencedBefore *fenced_before;  // by thread: its last fence for copies before the block's last barrier
  uint32_t at_cluster[MAX_WARPS];  // who waits for the barrier of the cluster
  Slot *reached;       // by thread of the cluster: its last arrival here from another block
  uint32_t *left;      // a clock: what the threads that have ended knew
  uint64_t random;
  Operands operands;   // of the product that is computed
};

// Where bytes of the window lie: in memory, and as a finding names it.
struct WindowPlace {
  uint8_t *memory;
  int32_t buffer;
  int64_t offset;      // in the variable
  int64_t room;        // bytes from there to the variable's end; at most 0 where it lies outside
};

// hopper.cpp
Hopper &hopper();                    // the current worker's, made at its first use
void begin_hopper(Worker &w);        // with a block
void close_hopper(Worker &w);
void begin_hopper_epoch(Worker &w);  // at a barrier of the block
void leave_hopper(Worker &w);        // the current fiber ends
uint32_t random(Hopper &h, uint32_t below);
WindowPlace place_of(const Worker &w, uint32_t address);
WindowPlace place_of_memory(const Worker &w, const uint8_t *memory);
// Nothing else can run: lets a copy arrive, or ends the block with a finding; false if nobody waits for what is here.
bool resolve_hopper(Worker &w);
bool report_stuck_block(Worker &w);  // false if nobody waits for what is here
// The current fiber waits; whoever ends that clears its bit of `waiting`.
void wait_for(Standing standing, uint32_t *waiting, uint64_t pc);
void wake_all(Worker &w, uint32_t *waiting);
void touch_shared(uint32_t address, uint32_t bytes, Access access, uint64_t pc);

// clocks.cpp: null clocks, and no work, where races are not looked for.
uint32_t *new_clock(Worker &w);
void publish(Worker &w, Knowledge &to);        // what the current thread has done and knows
void copy(Worker &w, Knowledge &to, const Knowledge &from);
void learn(Worker &w, const Knowledge &from);
void leave_clock(Worker &w);                   // the current thread ends
void fence_for_copies(Worker &w);
const uint32_t *least_of(Worker &w, uint32_t warpgroup);
// What the current thread knows, with all that it did itself; until forget_own.
const uint32_t *with_own(Worker &w);
void forget_own(Worker &w);
void begin_clock_epoch(Worker &w);
const Tag *tag_of(const Worker &w, const uint8_t *memory);
// Whether copies and products of a thread that knows `clock` may read what another access wrote to shared memory.
enum Readable : uint32_t { MAY_READ, NOT_ORDERED, NOT_FENCED };
Readable readable(const Worker &w, const uint32_t *clock, const Cell &cell, const Slot &now);
bool arrived(const Worker &w, const uint32_t *clock, const Cell &cell);

// cluster.cpp
// A block of the cluster; null, and a finding, where there is none, or it has ended.
Worker *member_at(Worker &w, uint32_t rank, uint64_t pc);
void check_reached(Worker &w);  // at the end of a block
// The current thread begins to write some bytes of another block asynchronously.
void mark_remote(Worker &w, Worker &target, uint8_t *memory, uint32_t bytes, const Slot &now, uint64_t pc);

// remote_store.cpp
void land_store(Worker &w, uint32_t number);

// mbarrier.cpp
Mbarrier *find_barrier(Worker &w, uint32_t address, uint64_t pc);
void end_phase(Worker &w, Mbarrier &barrier);  // if all is there
void check_registers(Worker &w);          // at the end of a block
void report_barrier(Worker &w, What what, uint32_t address, uint64_t pc, int64_t a = 0, int64_t b = 0);

// tensor_copy.cpp
// What is under way to a block, and one of it arrives.
inline uint32_t under_way(const Worker &w) { return w.hopper ? w.hopper->num_loads + w.hopper->num_stores : 0; }
void land(Worker &w, uint32_t number);
void finish_stores(Worker &w, bool written, uint32_t before_group);

// async_reads.cpp
// Checks that 16 bytes may be read now by an asynchronous operation, and notes that; `swizzle` as it was written, or ANY.
constexpr uint32_t ANY_SWIZZLE = ~0u;
void check_async_read(Worker &w, uint32_t address, const uint32_t *clock, const Slot &now, uint32_t swizzle, uint64_t pc);
Slot async_slot(const Worker &w, uint32_t thread, uint64_t pc);

// wgmma.cpp
void report_own_memory(Worker &w, const uint8_t *address, uint32_t bytes, uint64_t pc);

// products.cpp
void multiply(Worker &w, const Product &product);
void count_product(Worker &w, const Product &product);

}  // namespace emu
