// A kernel that touches unmapped memory, divides by zero, or runs too long is thrown out by a signal.
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "state.h"

namespace emu {
namespace {

const int CAUGHT[] = {SIGSEGV, SIGBUS, SIGFPE, SIGURG};
struct sigaction before[4];

const struct sigaction &previous(int number) {
  for (int i = 0; i < 4; ++i) {
    if (CAUGHT[i] == number) return before[i];
  }
  return before[0];
}

[[maybe_unused]] void leave() { abandon(); }

// Where the interrupted code was; 0 where this machine's registers are not known.
uint64_t interrupted_at(void *context) {
#if defined(__x86_64__)
  return (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
  (void)context;
  return 0;
#endif
}

// Makes the interrupted fiber continue in abandon().
void redirect(void *context) {
#if defined(__x86_64__)
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  registers[REG_RIP] = (greg_t)(uintptr_t)&leave;
  registers[REG_RSP] = ((registers[REG_RSP] - 512) & ~(greg_t)15) - 8;
#else
  (void)context;
#endif
}

void handle(int number, siginfo_t *info, void *context) {
  Worker *w = worker;
  uint64_t pc = interrupted_at(context);
  if (pc && w && w->current && !w->in_runtime && !w->abandoned) {
    bool own_code = pc >= w->launch->module_low && pc < w->launch->module_high;
    if (own_code) w->current->pc = pc + 1;  // like a return address
    if (number == SIGURG) {
      // The runtime looks at `stop` by itself, and the mathematics library returns soon.
      if (own_code && w->launch->stop != FINISHED) redirect(context);
      return;
    }
    redirect(context);
    w->in_runtime = 1;
    What what = number == SIGFPE ? CRASH_ARITHMETIC : BOUNDS_WILD;
    report({what, pc + 1, 0, NO_BUFFER}, 0, number == SIGFPE ? 0 : (int64_t)(uintptr_t)info->si_addr, nullptr);
    stop_launch(CRASHED);
    return;
  }
  if (number == SIGURG) return;
  // Not a kernel's: what was there before has it, when the instruction is tried again.
  sigaction(number, &previous(number), nullptr);
}

}  // namespace

void install_signals() {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
  for (int i = 0; i < 4; ++i) sigaction(CAUGHT[i], &action, &before[i]);
}

void restore_signals() {
  for (int i = 0; i < 4; ++i) sigaction(CAUGHT[i], &before[i], nullptr);
}

void interrupt(unsigned long thread) { pthread_kill((pthread_t)thread, SIGURG); }

}  // namespace emu
