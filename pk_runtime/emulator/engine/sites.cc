// Where in the program something happens. The compiler's instrumentation (-fsanitize=thread, with these functions
// in place of its library) tells every plain access and every call that was not inlined.
#include <cstring>
#include <unordered_map>

#include "memory.h"

namespace pk::emulated {

namespace {

struct frame {
  std::uint32_t caller;
  const void* from;
};
// Frame 0 is the bottom of every stack; a site is a frame too, whose `from` is the access itself.
std::vector<frame> frames = {{0, nullptr}};

struct key {
  std::uint32_t caller;
  const void* from;
  bool operator==(const key&) const = default;
};
struct hash {
  std::size_t operator()(const key& k) const { return std::hash<const void*>()(k.from) * 31 + k.caller; }
};
std::unordered_map<key, std::uint32_t, hash> known_frames;

std::uint32_t frame_of(std::uint32_t caller, const void* from) {
  const auto [at, added] = known_frames.emplace(key{caller, from}, std::uint32_t(frames.size()));
  if (added) frames.push_back({caller, from});
  return at->second;
}

void plain(const void* at, std::size_t bytes, bool write, const void* from) {
  if (m.running == nullptr || !in_arena(at)) return;
  manner how;
  how.write = write;
  touch(at, bytes, how, site_of(from));
  thread& t = *m.running;
  if (write) {
    t.polled.clear();
    return;
  }
  // A plain load that finds the same at the same place again and again is a loop that waits.
  std::uint64_t value = 0;
  std::memcpy(&value, at, bytes < 8 ? bytes : 8);
  const std::uint64_t now =
      reinterpret_cast<std::uint64_t>(at) * 31 + reinterpret_cast<std::uint64_t>(from) * 7 + value;
  t.spins = t.spun == now ? t.spins + 1 : 0;
  if (t.spins >= spins_at_most && bytes <= 8)
    wait_until("a change of " + describe(at) + ", which is " + std::to_string(value), true, [at, value, bytes] {
      std::uint64_t found = 0;
      std::memcpy(&found, at, bytes);
      return found != value;
    });
  t.spun = now;
}

}  // namespace

site site_of(const void* return_address) {
  return frame_of(m.running == nullptr ? 0 : m.running->frame, return_address);
}

std::vector<std::uint64_t> addresses_of(site s) {
  std::vector<std::uint64_t> all;
  for (; s != 0; s = frames[s].caller) all.push_back(reinterpret_cast<std::uint64_t>(frames[s].from) - 1);
  return all;
}

}  // namespace pk::emulated

using pk::emulated::m;
using pk::emulated::plain;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void* from) {
  if (m.running != nullptr) m.running->frame = pk::emulated::frame_of(m.running->frame, from);
}
void __tsan_func_exit() {
  if (m.running != nullptr) m.running->frame = pk::emulated::frames[m.running->frame].caller;
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define PK_PLAIN(bytes)                                                                                 \
  void __tsan_read##bytes(void* at) { plain(at, bytes, false, __builtin_return_address(0)); }           \
  void __tsan_write##bytes(void* at) { plain(at, bytes, true, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##bytes(void* at) { plain(at, bytes, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##bytes(void* at) { plain(at, bytes, true, __builtin_return_address(0)); }
PK_PLAIN(1)
PK_PLAIN(2)
PK_PLAIN(4)
PK_PLAIN(8)
PK_PLAIN(16)
#undef PK_PLAIN

void __tsan_read_range(void* at, unsigned long bytes) { plain(at, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* at, unsigned long bytes) { plain(at, bytes, true, __builtin_return_address(0)); }

}  // extern "C"
