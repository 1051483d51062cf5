// What -fsanitize=thread and -fsanitize=bounds make the kernel call. The sanitizers' own libraries are not linked.
#include <string.h>

#include "state.h"

using namespace emu;

#define PC ((uint64_t)__builtin_return_address(0))

static void volatile_read(void *address, uint32_t bytes, uint64_t pc) {
  check_access(address, bytes, VOLATILE_READ, pc);
  if (!worker || !checks(CHECK_RACES)) return;
  watch(address);
  poll(pc);
}

static void volatile_write(void *address, uint32_t bytes, uint64_t pc) {
  check_access(address, bytes, VOLATILE_WRITE, pc);
  if (worker && checks(CHECK_RACES)) store(address);
}

#define ACCESS(NAME, BYTES, KIND) \
  extern "C" void NAME(void *address) { observe(address, BYTES, KIND, PC); }
#define SIZED(BYTES)                                            \
  ACCESS(__tsan_read##BYTES, BYTES, READ)                       \
  ACCESS(__tsan_write##BYTES, BYTES, WRITE)                     \
  extern "C" void __tsan_volatile_read##BYTES(void *address) { volatile_read(address, BYTES, PC); }   \
  extern "C" void __tsan_volatile_write##BYTES(void *address) { volatile_write(address, BYTES, PC); } \
  ACCESS(__tsan_unaligned_read##BYTES, BYTES, READ)             \
  ACCESS(__tsan_unaligned_write##BYTES, BYTES, WRITE)           \
  extern "C" void __tsan_read_write##BYTES(void *address) {     \
    observe(address, BYTES, READ, PC);                     \
    observe(address, BYTES, WRITE, PC);                    \
  }                                                             \
  extern "C" void __tsan_unaligned_read_write##BYTES(void *address) { \
    observe(address, BYTES, READ, PC);                     \
    observe(address, BYTES, WRITE, PC);                    \
  }
SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)

extern "C" void __tsan_read_range(void *address, unsigned long bytes) {
  observe(address, (uint32_t)bytes, READ, PC);
}
extern "C" void __tsan_write_range(void *address, unsigned long bytes) {
  observe(address, (uint32_t)bytes, WRITE, PC);
}
extern "C" void *__tsan_memcpy(void *to, const void *from, unsigned long bytes) {
  if (bytes) observe(from, (uint32_t)bytes, READ, PC);
  if (bytes) observe(to, (uint32_t)bytes, WRITE, PC);
  return memcpy(to, from, bytes);
}
extern "C" void *__tsan_memmove(void *to, const void *from, unsigned long bytes) {
  if (bytes) observe(from, (uint32_t)bytes, READ, PC);
  if (bytes) observe(to, (uint32_t)bytes, WRITE, PC);
  return memmove(to, from, bytes);
}
extern "C" void *__tsan_memset(void *to, int value, unsigned long bytes) {
  if (bytes) observe(to, (uint32_t)bytes, WRITE, PC);
  return memset(to, value, bytes);
}
extern "C" void __tsan_vptr_update(void *, void *) {}
extern "C" void __tsan_vptr_read(void *) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void *) {}
extern "C" void __tsan_init() {}

// As the bounds sanitizer lays them out.
struct SourceLocation {
  const char *file;
  uint32_t line, column;
};
struct TypeDescriptor {
  uint16_t kind, info;
  char name[1];
};
struct OutOfBounds {
  SourceLocation location;
  const TypeDescriptor *array, *index;
};

static void out_of_bounds(const OutOfBounds *data, unsigned long value, uint64_t pc) {
  if (!worker || !worker->current) return;
  int64_t index = (int64_t)value;
  uint32_t width = 1u << (data->index->info >> 1);
  if (width < 64) {
    bool is_signed = data->index->info & 1;
    index = (int64_t)(value << (64 - width));
    index = is_signed ? index >> (64 - width) : (int64_t)((uint64_t)index >> (64 - width));
  }
  report_index(pc, index, data->array->name);
}

extern "C" void __ubsan_handle_out_of_bounds(const OutOfBounds *data, unsigned long value) {
  out_of_bounds(data, value, PC);
}
extern "C" void __ubsan_handle_out_of_bounds_abort(const OutOfBounds *data, unsigned long value) {
  out_of_bounds(data, value, PC);
}

struct TypeMismatch {
  SourceLocation location;
  const TypeDescriptor *type;
  uint8_t log_alignment, check;
};

static void type_mismatch(const TypeMismatch *data, uint64_t pointer, uint64_t pc) {
  if (!worker || !worker->current) return;
  uint64_t alignment = 1ull << data->log_alignment;
  if (pointer & (alignment - 1)) {
    report({BOUNDS_MISALIGNED, pc, 0, NO_BUFFER}, (uint32_t)alignment, (int64_t)pointer, nullptr);
  }
}

extern "C" void __ubsan_handle_type_mismatch_v1(const TypeMismatch *data, unsigned long pointer) {
  type_mismatch(data, pointer, PC);
}
extern "C" void __ubsan_handle_type_mismatch_v1_abort(const TypeMismatch *data, unsigned long pointer) {
  type_mismatch(data, pointer, PC);
}
