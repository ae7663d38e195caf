// Threads that meet: barriers, which order what their threads did, and instructions of a warp or a warpgroup,
// which do not.
#include <cstdio>

#include "machine.h"

namespace pk::emulated {

namespace {

// All know what each of them knew.
void share(const std::vector<thread*>& threads) {
  auto all = std::make_shared<knowledge>();
  known joined;
  for (thread* t : threads) {
    if (t->base != joined)
      all->seen.join(t->base->seen), all->shared.join(t->base->shared), all->global.join(t->base->global);
    joined = t->base;
  }
  for (thread* t : threads) {
    all->seen.raise(std::size_t(t->id), t->now);
    all->shared.raise(std::size_t(t->id), t->shared);
    all->global.raise(std::size_t(t->id), t->global);
    ++t->now;
  }
  for (thread* t : threads) t->base = all;
}

void meet(meeting& here, int threads, const std::string& what,
          const std::function<void(std::vector<thread*>&)>& together) {
  thread& t = *m.running;
  t.polled.clear();
  here.arrived.push_back(&t);
  if (int(here.arrived.size()) < threads) {
    wait_until(what, false, nullptr);
    return;
  }
  std::vector<thread*> all = std::move(here.arrived);
  here.arrived.clear();
  together(all);
  for (thread* other : all)
    if (other != &t) wake(*other);
}

}  // namespace

void barrier(int number, int threads) {
  char what[64];
  std::snprintf(what, sizeof what, "barrier %d of its block (%d threads)", number, threads);
  block& b = block_of(*m.running);
  if (threads % 32 != 0 || threads > int(b.threads.size())) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "barrier %d waits for %d threads: a multiple of 32 up to the block's %d is possible", number, threads,
                  int(b.threads.size()));
    stop("fault", name_of(*m.running) + ": " + text);
  }
  meet(b.barriers[number], threads, what, [](std::vector<thread*>& all) { share(all); });
}

void block_barrier() { barrier(0, int(block_of(*m.running).threads.size())); }

void warp_barrier() {
  thread& t = *m.running;
  meet(block_of(t).warps[t.index / 32], 32, "the other threads of its warp",
       [](std::vector<thread*>& all) { share(all); });
}

void with_warp(const std::function<void(std::vector<thread*>&)>& together) {
  thread& t = *m.running;
  meet(block_of(t).warps[t.index / 32], 32, "the other threads of its warp", together);
}

void with_warpgroup(const std::function<void(std::vector<thread*>&)>& together) {
  thread& t = *m.running;
  meet(block_of(t).warpgroups[t.index / 128], 128, "the other threads of its warpgroup", together);
}

int lane() { return m.running->index % 32; }

std::uint64_t exchange(std::uint64_t value, int from) {
  thread& t = *m.running;
  t.given = value;
  const int first = t.index / 32 * 32;
  with_warp([first](std::vector<thread*>& all) {
    block& b = block_of(*all[0]);
    std::uint64_t values[32];
    for (int i = 0; i < 32; ++i) values[i] = b.threads[std::size_t(first + i)]->given;
    for (thread* other : all) other->exchanged.assign(values, values + 32);
  });
  return t.exchanged[std::size_t(from & 31)];
}

void fence_system() { fence_scope(*m.running, scope::sys); }

}  // namespace pk::emulated
