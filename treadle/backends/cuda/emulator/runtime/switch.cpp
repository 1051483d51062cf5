// Switching between fibers: by hand on x86-64, by ucontext elsewhere (and with TREADLE_EMU_UCONTEXT).
#include <stdlib.h>
#include <string.h>

#include "state.h"

#if defined(__x86_64__) && !defined(TREADLE_EMU_UCONTEXT)

asm(R"(
.text
.globl treadle_emu_switch
.type treadle_emu_switch,@function
treadle_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size treadle_emu_switch,.-treadle_emu_switch
)");

namespace emu {

void *prepare_stack(uint8_t *stack, size_t bytes, void (*start)()) {
  void **top = (void **)(((uintptr_t)stack + bytes) & ~(uintptr_t)63);
  *--top = nullptr;          // keeps the stack aligned as after a call
  *--top = (void *)start;    // where the switch returns to
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}

}  // namespace emu

#else
#include <ucontext.h>

namespace emu {

struct Context {
  ucontext_t context;
};

extern "C" void treadle_emu_switch(void **save, void *load) {
  Context own;
  *save = &own;
  swapcontext(&own.context, &((Context *)load)->context);
}

void *prepare_stack(uint8_t *stack, size_t bytes, void (*start)()) {
  // The context lies at the top of the stack that it describes.
  Context *made = (Context *)(((uintptr_t)stack + bytes - sizeof(Context)) & ~(uintptr_t)63);
  getcontext(&made->context);
  made->context.uc_stack.ss_sp = stack;
  made->context.uc_stack.ss_size = (uint8_t *)made - stack;
  made->context.uc_link = nullptr;
  makecontext(&made->context, start, 0);
  return made;
}

}  // namespace emu
#endif
