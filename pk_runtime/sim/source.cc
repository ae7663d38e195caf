// Call chains, numbered: an access or a wait remembers a number, not addresses.
#include "source.h"

#include <array>
#include <map>

#include "world.h"

extern "C" const char __executable_start;

namespace pk::sim {

namespace {

// A wrapper of pk/sim, one or two functions of pk/common, a lambda of the author's, the role.
constexpr int most_calls = 6;
using chain = std::array<const char*, most_calls>;

std::map<chain, site> numbers;
std::vector<chain> chains;

// The last few chains by their innermost addresses: roles are loops.
struct known {
  chain calls{};
  site number = 0;
};
known recent[256];

bool on_stack(const fiber& f, void* const* frame) {
  const auto* at = reinterpret_cast<const char*>(frame);
  const auto* low = static_cast<const char*>(f.stack);
  return at >= low && at + 2 * sizeof(void*) <= low + f.stack_bytes && reinterpret_cast<std::uintptr_t>(at) % 8 == 0;
}

}  // namespace

site site_of(const fiber& f, void* const* frame) {
  if (w.ask.timing) return 0;
  chain calls{};
  std::uintptr_t hash = 0;
  for (int i = 0; i < most_calls && on_stack(f, frame); ++i) {
    calls[i] = static_cast<const char*>(frame[1]);
    hash = hash * 31 + reinterpret_cast<std::uintptr_t>(calls[i]);
    auto* const up = static_cast<void* const*>(frame[0]);
    if (up <= frame) break;
    frame = up;
  }
  known& k = recent[(hash ^ hash >> 9) % 256];
  if (k.number == 0 || k.calls != calls) {
    const auto [at, fresh] = numbers.try_emplace(calls, site(chains.size() + 1));
    if (fresh) chains.push_back(calls);
    k = {calls, at->second};
  }
  return k.number;
}

std::string mark_of(site number) {
  if (number == 0 || number > chains.size()) return "";
  std::string addresses;
  for (const char* call : chains[number - 1]) {
    if (call == nullptr) break;
    // One byte back, into the call: the return address may already belong to the next line.
    addresses += printf_string("%s%tx", addresses.empty() ? "" : ",", call - 1 - &__executable_start);
  }
  return addresses.empty() ? "" : "<@" + addresses + ">";
}

}  // namespace pk::sim
