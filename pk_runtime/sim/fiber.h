// Cooperative threads of execution: each role of each block of each rank is one fiber with its own stack.
#pragma once

#include <cstddef>

namespace pk::sim {

// A suspended computation. switch_to returns when somebody switches back.
struct context {
  void* stack_pointer = nullptr;
};

void switch_to(context& from, context& to);

// Prepares `c` to call entry(argument) on the given stack; entry must never return.
void prepare(context& c, void* stack, std::size_t bytes, void (*entry)(void*), void* argument);

// A stack with an inaccessible page below it, so that an overflow is a fault and not a corruption.
void* allocate_stack(std::size_t bytes);

}  // namespace pk::sim
