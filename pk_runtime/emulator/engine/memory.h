// Memory of all ranks: one arena of allocations with gaps between them, and what is known of each word's accesses.
#pragma once

#include "machine.h"

namespace pk::emulated {

struct allocation {
  unsigned char* begin = nullptr;
  std::size_t bytes = 0;
  int rank = 0, block = -1;  // block: of shared memory, else -1
  std::string kind, name;
  int element = 4;  // bytes
  bool shared() const { return block >= 0; }
};

unsigned char* allocate(int rank, const std::string& kind, const std::string& name, std::size_t bytes, int element,
                        int block = -1);
const allocation* find_allocation(const void* at);
bool in_arena(const void* at);
std::string describe(const void* at);  // "slot 3 of signals 'ready' of rank 1"

// How memory was touched. Strong accesses of a scope that covers both do not race with each other.
struct manner {
  bool write = false, async = false, strong = false;
  scope wide = scope::cta;
  int component = -1;  // of an asynchronous access, else the thread
  std::uint32_t count = 0;
};

// Checks an access by the running thread against all earlier ones, and remembers it. Ends the run if it is not
// inside one allocation.
void touch(const void* at, std::size_t bytes, const manner& how, site where);
// The same for the host of a rank, between launches.
void touch_by_host(int rank, const allocation& a, bool write, const char* doing);
void forget(const allocation& a);  // of shared memory, when a block ends

}  // namespace pk::emulated
