// Many schedules of one kernel, each in a process of its own that is forked from the initialised one.
#pragma once

#include <cstdint>
#include <vector>

#include "past.h"
#include "world.h"

namespace pk::sim {

// A signal that arrives or a wait that is passed. `process` is the operation's or the fiber's id, `object` the counter.
struct event {
  std::uint64_t process = 0, object = 0;
  bool wait = false;
  std::uint64_t surplus = 0;  // of a wait: signals it has seen beyond those it needs
};

// The order of two signals, or of two waits, on one counter makes no difference; that of a signal and a wait decides
// whether the wait has seen the signal.
inline bool dependent(const event& a, const event& b) { return a.object == b.object && a.wait != b.wait; }

// In the forked process: adds an event to the record that the search reads. `before` is what its process knew, `all` that
// and everything it depends on.
void record_event(const event&, std::size_t choice, const past& before, const past& all);

enum class branch { finished, failed, redundant, diverged, too_long };
[[noreturn]] void end_of_branch(branch);  // in the forked process; `failed` after writing a report

bool exploring();          // whether this is a forked process
[[noreturn]] void explore();  // runs what the request lists and writes the report

// What a forked process tells besides: how many steps it took, and the hash of each output, in any order.
void note_steps(std::uint64_t steps);
void note_output(std::uint64_t hash);

inline constexpr std::uint64_t hash_start = 0xcbf29ce484222325ull;  // FNV-1a
inline std::uint64_t hashed(std::uint64_t hash, const char* bytes, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3ull;
  return hash;
}

}  // namespace pk::sim
