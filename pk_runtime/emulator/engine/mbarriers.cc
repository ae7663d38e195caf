// mbarriers: arrivals, bytes of bulk loads, and phases. An arrival releases, a wait that succeeds acquires, both
// for the block; it has also observed the phase's bulk loads.
#include <cstdio>

#include "memory.h"

namespace pk::emulated {

namespace {

std::string name_at(const block& b, std::uint32_t at) { return describe(b.memory + (at - shared_base)); }

void check_phase(mbarrier& bar) {
  if (bar.pending > 0 || bar.bytes != 0) return;
  ++bar.phase;
  bar.pending = bar.expected;
  bar.completed.add(bar.arriving);
  bar.arriving.clear();
}

// mbarrier operations are strong; only their order with the initialisation can be wrong, which must stay known.
void touch_barrier(block& b, std::uint32_t at, bool init, site where) {
  manner how;
  how.write = init, how.strong = !init;
  touch(b.memory + (at - shared_base), 8, how, where);
}

}  // namespace

mbarrier& find_mbarrier(block& b, std::uint32_t at, const char* use) {
  const auto found = b.mbarriers.find(at);
  if (found == b.mbarriers.end())
    stop("fault", name_of(*m.running) + ": " + use + " at " + name_at(b, at) + ", where no mbarrier was initialised");
  return found->second;
}

void mbarrier_init(std::uint32_t at, int arrivals, site where) {
  block& b = block_of(*m.running);
  touch_barrier(b, at, true, where);
  if (arrivals < 1) stop("fault", name_of(*m.running) + ": an mbarrier needs at least one arrival");
  mbarrier bar;
  bar.expected = bar.pending = arrivals;
  const auto before = b.load_components.find(at);
  bar.component = before != b.load_components.end() ? before->second.first : new_component();
  bar.first = before != b.load_components.end() ? before->second.second : 0;
  b.mbarriers[at] = std::move(bar);
}

void mbarrier_arrive(std::uint32_t at, site where) {
  thread& t = *m.running;
  block& b = block_of(t);
  touch_barrier(b, at, false, where);
  mbarrier& bar = find_mbarrier(b, at, "an arrival");
  if (bar.pending == 0)
    stop("fault", name_of(t) + ": one arrival too many on the mbarrier at " + name_at(b, at) +
                      ": its phase has had all " + std::to_string(bar.expected) + " and still waits for " +
                      std::to_string(bar.bytes) + " bytes");
  --bar.pending;
  bar.arriving.add(stamp_of(t));
  t.polled.clear();
  check_phase(bar);
  pause();
}

void mbarrier_expect(std::uint32_t at, int bytes) {
  block& b = block_of(*m.running);
  find_mbarrier(b, at, "bytes are expected").bytes += bytes;
}

void mbarrier_loaded(block& b, std::uint32_t at, int bytes) {
  mbarrier& bar = b.mbarriers[at];
  bar.bytes -= bytes;
  check_phase(bar);
}

bool mbarrier_wait(std::uint32_t at, std::uint32_t parity, site where) {
  thread& t = *m.running;
  block& b = block_of(t);
  touch_barrier(b, at, false, where);
  mbarrier& bar = find_mbarrier(b, at, "a wait");
  t.polled.clear();
  if ((bar.phase & 1) == parity) {
    char what[160];
    std::snprintf(what, sizeof what, "phase %u of the mbarrier at %s (%d of %d arrivals, %lld bytes missing)",
                  bar.phase, name_at(b, at).c_str(), bar.expected - bar.pending, bar.expected,
                  static_cast<long long>(bar.bytes));
    wait_until(what, true, [&bar, parity] { return (bar.phase & 1) != parity; });
    if ((bar.phase & 1) == parity) return false;
  }
  t.base = bar.completed.acquired(t.base, bar.component, bar.first + bar.phase);
  return true;
}

}  // namespace pk::emulated
