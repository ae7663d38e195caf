// Allocations of all ranks in one arena, with gaps that nothing may touch.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pk::emulated {

namespace {

constexpr std::size_t arena_bytes = std::size_t(1) << 30, gap_bytes = 4096;
unsigned char* arena = nullptr;
std::size_t used = 0;
std::vector<std::unique_ptr<allocation>> all;  // by address

}  // namespace

unsigned char* allocate(int rank, const std::string& kind, const std::string& name, std::size_t bytes, int element,
                        int block) {
  if (arena == nullptr) {
    void* at = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) stop("fault", "there is no memory for the virtual GPUs");
    arena = static_cast<unsigned char*>(at);
  }
  used = (used + gap_bytes + 1023) / 1024 * 1024;
  if (used + bytes + gap_bytes > arena_bytes)
    stop("fault", "the tensors and the shared memory of all ranks need more than 1 GiB: use smaller shapes");
  auto a = std::make_unique<allocation>();
  a->begin = arena + used, a->bytes = bytes, a->rank = rank, a->block = block;
  a->kind = kind, a->name = name, a->element = element;
  used += bytes;
  all.push_back(std::move(a));
  return all.back()->begin;
}

bool in_arena(const void* at) {
  const auto* p = static_cast<const unsigned char*>(at);
  return arena != nullptr && p >= arena && p < arena + arena_bytes;
}

std::size_t arena_offset(const void* at) { return std::size_t(static_cast<const unsigned char*>(at) - arena); }

const allocation* find_allocation(const void* at) {
  static const allocation* last = nullptr;
  const auto* p = static_cast<const unsigned char*>(at);
  const auto inside = [p](const allocation* a) { return p >= a->begin && p < a->begin + a->bytes; };
  if (last != nullptr && inside(last)) return last;
  const auto next =
      std::upper_bound(all.begin(), all.end(), p, [](const unsigned char* x, const auto& a) { return x < a->begin; });
  if (next == all.begin()) return nullptr;
  const allocation* a = std::prev(next)->get();
  return inside(a) ? last = a : nullptr;
}

std::string describe(const void* at) {
  const allocation* a = find_allocation(at);
  if (a == nullptr) return "memory outside of every object";
  char text[224];
  const auto offset = static_cast<const unsigned char*>(at) - a->begin;
  if (a->shared())
    std::snprintf(text, sizeof text, "byte %td of the shared memory of rank %d block %d", offset, a->rank, a->block);
  else
    std::snprintf(text, sizeof text, "element %td of %s%s%s%s of rank %d", offset / a->element, a->kind.c_str(),
                  a->name.empty() ? "" : " '", a->name.c_str(), a->name.empty() ? "" : "'", a->rank);
  return text;
}

}  // namespace pk::emulated
