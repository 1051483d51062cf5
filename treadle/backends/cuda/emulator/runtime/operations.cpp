// What instrument.py makes the compiled text call, in between its instructions: no register and no flag may change.
#include <stdint.h>

#if defined(__x86_64__)

// One more execution of a run of instructions, whose number was pushed before the call.
asm(R"(
.text
.globl treadle_emu_run
.type treadle_emu_run,@function
treadle_emu_run:
  pushfq
  pushq %rax
  pushq %rcx
  movq treadle_emu_runs@gottpoff(%rip), %rax
  movq %fs:(%rax), %rax
  testq %rax, %rax
  jz 1f
  movq 32(%rsp), %rcx
  incq (%rax,%rcx,8)
1:
  popq %rcx
  popq %rax
  popfq
  ret $8
.size treadle_emu_run,.-treadle_emu_run

)"

// A pass of a loop begins. The distance from the call to the loop's end was pushed before it.
R"(
.globl treadle_emu_pass
.type treadle_emu_pass,@function
treadle_emu_pass:
  pushfq
  pushq %rax
  pushq %rcx
  pushq %rdx
  pushq %rsi
  pushq %rdi
  pushq %r8
  pushq %r9
  pushq %r10
  pushq %r11
  pushq %rbp
  movq %rsp, %rbp
  movq 88(%rbp), %rdi
  addq 96(%rbp), %rdi
  subq $256, %rsp
  andq $-16, %rsp
  movaps %xmm0, (%rsp)
  movaps %xmm1, 16(%rsp)
  movaps %xmm2, 32(%rsp)
  movaps %xmm3, 48(%rsp)
  movaps %xmm4, 64(%rsp)
  movaps %xmm5, 80(%rsp)
  movaps %xmm6, 96(%rsp)
  movaps %xmm7, 112(%rsp)
  movaps %xmm8, 128(%rsp)
  movaps %xmm9, 144(%rsp)
  movaps %xmm10, 160(%rsp)
  movaps %xmm11, 176(%rsp)
  movaps %xmm12, 192(%rsp)
  movaps %xmm13, 208(%rsp)
  movaps %xmm14, 224(%rsp)
  movaps %xmm15, 240(%rsp)
  call treadle_emu_log_pass
  movaps (%rsp), %xmm0
  movaps 16(%rsp), %xmm1
  movaps 32(%rsp), %xmm2
  movaps 48(%rsp), %xmm3
  movaps 64(%rsp), %xmm4
  movaps 80(%rsp), %xmm5
  movaps 96(%rsp), %xmm6
  movaps 112(%rsp), %xmm7
  movaps 128(%rsp), %xmm8
  movaps 144(%rsp), %xmm9
  movaps 160(%rsp), %xmm10
  movaps 176(%rsp), %xmm11
  movaps 192(%rsp), %xmm12
  movaps 208(%rsp), %xmm13
  movaps 224(%rsp), %xmm14
  movaps 240(%rsp), %xmm15
  movq %rbp, %rsp
  popq %rbp
  popq %r11
  popq %r10
  popq %r9
  popq %r8
  popq %rdi
  popq %rsi
  popq %rdx
  popq %rcx
  popq %rax
  popfq
  ret $8
.size treadle_emu_pass,.-treadle_emu_pass
)");

#endif
