// What Python hands to a launch and gets back. native.py mirrors every structure of this file.
#pragma once
#include <stdint.h>

namespace emu {

constexpr uint32_t WARP_SIZE = 32;
constexpr uint32_t MAX_THREADS = 1024;
constexpr uint32_t MAX_WARPS = MAX_THREADS / WARP_SIZE;
constexpr uint32_t MAX_FINDINGS = 1024;

enum Check : uint32_t { CHECK_RACES = 1, CHECK_BOUNDS = 2, CHECK_INIT = 4, CHECK_DIVERGENCE = 8 };

enum Outcome : uint32_t { FINISHED, OUT_OF_TIME, CRASHED, NEEDS_BYTE_CELLS, OUT_OF_MEMORY, STACK_OVERFLOW, STUCK };

// What a finding says; reports.py words them.
enum What : uint32_t {
  RACE_READ_WRITE,      // a read, and a write that it is not ordered with
  RACE_WRITE_WRITE,
  RACE_IN_FLIGHT,       // memory that an asynchronous copy has not been waited for
  BOUNDS_OUTSIDE,       // before or behind a buffer
  BOUNDS_INDEX,         // an index outside an array's dimension
  BOUNDS_MISALIGNED,
  BOUNDS_WILD,          // an address in no buffer at all
  BOUNDS_READ_ONLY,     // a write to a buffer that is a pointer to const
  INIT_SHARED,
  INIT_REGISTER,        // a value made from registers never written reached global memory
  DIVERGENCE_BARRIER,   // some threads wait at a barrier that others never reach
  DIVERGENCE_PLACES,    // threads meet at different barriers
  DIVERGENCE_WARP,      // a warp operation that lanes of its mask do not take part in
  DIVERGENCE_SOURCE,    // a shuffle from a lane that takes no part
  DIVERGENCE_MASK,      // a lane that its own mask does not name
  CRASH_ARITHMETIC,     // an integer division by zero
  MBARRIER_UNINITIALISED,
  MBARRIER_REINITIALISED,  // while a phase is under way
  MBARRIER_UNPUBLISHED,    // a copy to one whose initialisation no fence has published
  MBARRIER_ARRIVALS,       // a number of arrivals that it does not take
  MBARRIER_BYTES,          // more bytes than a phase can wait for
  MBARRIER_BEHIND,         // a wait for a phase after which others have ended
  MBARRIER_STUCK,          // threads wait for a phase that never ends
  NAMED_NUMBER,            // a number or a count of threads that a named barrier does not take
  NAMED_COUNT,             // another count than that of threads that came before
  NAMED_TWICE,             // a thread comes again before all others came
  NAMED_WARP,              // lanes of a warp did not come with it
  NAMED_STUCK,
  TENSOR_MAP,              // no tensor map, or of another rank
  TENSOR_ALIGNMENT,        // of the tile in shared memory
  TENSOR_COORDINATE,       // the innermost one lies between multiples of 16 bytes
  TENSOR_UNREAD,           // the block ended while a store still read shared memory
  ASYNC_UNFENCED,          // a copy or a product reads what a thread wrote without a fence
  WGMMA_SUMS,              // registers touched while a product works on them
  WGMMA_FENCE,             // registers that no fence orders before a product
  WGMMA_DESCRIPTOR,        // a matrix descriptor with fields that mean nothing
  WGMMA_SWIZZLE,           // bytes that were written with another swizzle
  WGMMA_DIFFERS,           // threads of a warpgroup at different products
  WGMMA_STUCK,             // threads of a warpgroup miss at a product
  WGMMA_UNWAITED,          // the block ended while products were under way
  REGISTERS_WARPGROUP,     // threads of a warpgroup ask for different numbers of registers
  REGISTERS_NUMBER,        // a number that the instruction does not take
  REGISTERS_SUM,           // more than the block has
  TENSOR_UNARRIVED,        // the block ended while a load was under way
  CLUSTER_RANK,            // a block that the cluster does not have
  CLUSTER_ENDED,           // a block of the cluster that has ended
  CLUSTER_STUCK,
  CLUSTER_ARRIVALS,        // a second arrival at its barrier before the wait, or a wait without an arrival
  CLUSTER_SCOPE,           // a wait that does not order what other blocks stored
  STORE_BARRIER,           // a store to one block that completes at a barrier of another
  WGMMA_DROPPED,           // a product clears the sums of one under way
  TENSOR_MODE,             // a copy of a box by a map of pixels, or the other way
  TENSOR_PIXEL,            // a copy begins at a pixel that its map does not walk over
  TENSOR_OFFSET,           // an offset that the instruction does not take
};

// A buffer of device memory. With checks it is copied between red zones, and back afterwards.
struct Buffer {
  uint8_t *host;
  uint64_t bytes;
  uint32_t granule;    // bytes of memory for each shadow cell
  uint32_t read_only;  // only pointers to const lead to it
  uint32_t floats;     // its elements are floating-point numbers
  uint32_t element;    // bytes of one; 0 where it is not known
  uint64_t device;     // where the kernel finds it
};

// A kernel argument that points into a buffer.
struct PointerArgument {
  uint32_t argument;
  uint32_t buffer;
  uint64_t offset;
};

// A variable in shared memory: its place after the module's anchor in thread-local storage.
struct SharedVariable {
  int64_t offset;
  uint64_t bytes;
};

struct Finding {
  uint32_t what;
  uint32_t line;       // of a barrier in the text; 0 where pc gives it
  uint64_t pc, other_pc;
  int32_t buffer;      // index of a buffer; -1 - index of a shared variable; NO_BUFFER
  uint32_t size;       // bytes of the access
  int64_t offset;      // bytes from the buffer's start, or the index of BOUNDS_INDEX
  uint32_t thread, other_thread;
  uint32_t block, other_block;
  uint32_t other_line; // of DIVERGENCE_PLACES
  uint32_t padding;
  const char *text;    // the array type of BOUNDS_INDEX
  uint64_t count;      // how often
  int64_t numbers[4];  // of report_numbers
  uint32_t threads[MAX_WARPS];  // of that block, one bit a thread
};
constexpr int32_t NO_BUFFER = 1 << 30;

enum Standing : uint32_t { ABSENT, RUNNING, READY, AT_BARRIER, AT_WARP, LEFT, NOT_STARTED, AT_MBARRIER, AT_NAMED, AT_WARPGROUP,
                           AT_CLUSTER };

struct Place {
  uint32_t standing;
  uint32_t line;       // of a barrier; 0 where pc gives it
  uint64_t pc;
};

// The counts of one line of the text, summed over the warps that executed it. reports.py documents each.
struct Count {
  uint32_t pc;         // after the module's base; 0 where the line is known
  uint32_t line;       // of a barrier; 0 where pc gives it
  uint64_t global_requests, global_sectors, global_ideal, global_read, global_written;
  uint64_t shared_requests, shared_phases, shared_wavefronts, shared_read, shared_written;
  uint64_t operations, barriers, waits;
};

struct Request {
  void (*entry)(void **arguments);
  char *(*anchor)();
  void **arguments;    // each points to the argument's value
  PointerArgument *pointers;
  Buffer *buffers;
  SharedVariable *variables;
  uint32_t num_pointers, num_buffers, num_variables;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t dynamic_bytes;
  uint32_t workers;
  uint32_t checks;
  uint32_t byte_cells; // shadow cells of shared memory stand for 1 byte instead of 4
  double limit;        // seconds
  uint32_t counters;   // whether to count
  uint32_t num_runs;   // runs of instructions that have a number
  uint64_t *runs;      // how often each was executed; room for num_runs
  // results
  uint32_t outcome;
  uint32_t num_findings;
  uint32_t stopped_block;
  uint32_t padding;
  uint64_t module_base;
  Finding *findings;   // room for MAX_FINDINGS
  Place *places;       // room for MAX_THREADS: where the threads of stopped_block stood
  Count *counts;       // places may occur several times; treadle_emu_free_counts frees them
  uint64_t num_counts;
};

}  // namespace emu
