#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace pk::sim {

void* allocate_stack(std::size_t bytes) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* at = mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("pk simulator: no memory for a fiber's stack");
    std::_Exit(70);
  }
  mprotect(at, page, PROT_NONE);
  return static_cast<char*>(at) + page;
}

}  // namespace pk::sim

#if defined(__x86_64__)

// System V: rbx, rbp, r12-r15 and the stack pointer survive a call; the floating-point control words
// are never changed by kernels.
asm(R"(
.text
.globl pk_sim_switch
.type pk_sim_switch, @function
pk_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pk_sim_switch, .-pk_sim_switch

.globl pk_sim_start
.type pk_sim_start, @function
pk_sim_start:
  movq %r12, %rdi
  callq *%rbx
  ud2
.size pk_sim_start, .-pk_sim_start
)");

extern "C" void pk_sim_switch(void** save, void** load);
extern "C" void pk_sim_start();

namespace pk::sim {

void switch_to(context& from, context& to) { pk_sim_switch(&from.stack_pointer, &to.stack_pointer); }

void prepare(context& c, void* stack, std::size_t bytes, void (*entry)(void*), void* argument) {
  auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15};
  auto* frame = reinterpret_cast<void**>(top) - 9;  // six registers, return address, 16-byte alignment at the call
  for (int i = 0; i < 9; ++i) frame[i] = nullptr;
  frame[3] = argument;                        // r12
  frame[4] = reinterpret_cast<void*>(entry);  // rbx
  frame[6] = reinterpret_cast<void*>(&pk_sim_start);
  c.stack_pointer = frame;
}

}  // namespace pk::sim

#else

#include <ucontext.h>

// Portable and slower: every switch asks the kernel for the signal mask.
namespace pk::sim {

namespace {
ucontext_t* state_of(context& c) {
  if (c.stack_pointer == nullptr) c.stack_pointer = new ucontext_t{};
  return static_cast<ucontext_t*>(c.stack_pointer);
}

void start(unsigned entry_low, unsigned entry_high, unsigned arg_low, unsigned arg_high) {
  auto join = [](unsigned low, unsigned high) {
    return reinterpret_cast<void*>((std::uintptr_t(high) << 32) | low);
  };
  reinterpret_cast<void (*)(void*)>(join(entry_low, entry_high))(join(arg_low, arg_high));
}
}  // namespace

void switch_to(context& from, context& to) { swapcontext(state_of(from), state_of(to)); }

void prepare(context& c, void* stack, std::size_t bytes, void (*entry)(void*), void* argument) {
  ucontext_t* u = state_of(c);
  getcontext(u);
  u->uc_stack.ss_sp = stack;
  u->uc_stack.ss_size = bytes;
  u->uc_link = nullptr;
  auto e = reinterpret_cast<std::uintptr_t>(entry), a = reinterpret_cast<std::uintptr_t>(argument);
  makecontext(u, reinterpret_cast<void (*)()>(&start), 4, unsigned(e), unsigned(e >> 32), unsigned(a),
              unsigned(a >> 32));
}

}  // namespace pk::sim

#endif
