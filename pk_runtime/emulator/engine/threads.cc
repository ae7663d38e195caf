// Who runs: one fiber per thread of every block of every rank, taken in a seeded order.
#include <algorithm>
#include <cstdio>

#include "machine.h"
#include "memory.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace pk::emulated {

machine m;

namespace {

constexpr std::size_t stack_bytes = 128 << 10;
constexpr int jumps_at_most = 12;  // of the clock, without anybody getting further

struct entry {
  void (*kernel)(const void*, const void*);
  const void *args, *run;
};
std::vector<entry> entries;  // by rank
std::vector<thread*> watchers;

void switch_to(thread& t) {
  m.running = &t;
  threadIdx = t.variables.thread, blockIdx = t.variables.block;
  blockDim = t.variables.block_dim, gridDim = t.variables.grid_dim;
  sim::switch_to(m.main, t.fiber);
  m.running = nullptr;
}

void to_main(thread& t) { sim::switch_to(t.fiber, m.main); }

void body(void* at) {
  thread& t = *static_cast<thread*>(at);
  const entry& e = entries[std::size_t(t.rank)];
  e.kernel(e.args, e.run);
  check_exit(t);
  t.state = thread::finished;
  --m.ranks[std::size_t(t.rank)].live;
  to_main(t);
  __builtin_unreachable();
}

// `passed`: lazy threads that were not taken.
thread* choose(int passed = 0) {
  std::size_t all = 0, slow = 0;
  for (std::size_t r = 0; r < m.ready.size(); ++r) {
    all += m.ready[r].size();
    if (int(r) == m.slow) slow = m.ready[r].size();
  }
  if (all == 0) return nullptr;
  const bool others = all > slow && slow > 0 && m.random() % 32 != 0;
  std::size_t pick = m.seed == 0 ? 0 : m.random() % (others ? all - slow : all);
  for (std::size_t r = 0; r < m.ready.size(); ++r) {
    auto& queue = m.ready[r];
    if (others && int(r) == m.slow) continue;
    if (pick >= queue.size()) {
      pick -= queue.size();
      continue;
    }
    thread* t = queue[pick];
    if (t->lazy && all > 1 && m.random() % 16 != 0 && ++passed < 4) return choose(passed);
    if (m.seed == 0)
      queue.erase(queue.begin());
    else
      queue[pick] = queue.back(), queue.pop_back();
    return t;
  }
  return nullptr;
}

bool time_passes() {
  m.ns += m.timeout_ns * 3 / 5;
  bool any = false;
  for (thread* t : watchers)
    if (t->clocked) t->wakes = [] { return true; }, any = true;
  return any;
}

[[noreturn]] void give_up() { stop("deadlock", "no thread can run any more"); }

}  // namespace

std::string name_of(const thread& t) {
  char text[96];
  std::snprintf(text, sizeof text, "rank %d block %d thread %d", t.rank, t.block, t.index);
  return text;
}

block& block_of(const thread& t) { return *m.ranks[std::size_t(t.rank)].blocks[std::size_t(t.block)]; }

void wake(thread& t) {
  t.state = thread::ready;
  t.waits_for.clear();
  m.ready[std::size_t(t.rank)].push_back(&t);
}

void pause() {
  if (!m.chance(8)) return;
  thread& t = *m.running;
  wake(t);
  to_main(t);
}

void wait_until(std::string what, bool clocked, std::function<bool()> wakes) {
  thread& t = *m.running;
  t.state = thread::blocked;
  t.waits_for = std::move(what);
  t.clocked = clocked;
  t.wakes = std::move(wakes);
  if (t.wakes) watchers.push_back(&t);
  to_main(t);
}

void look_at_waiters() {
  std::vector<thread*> waiting;
  std::vector<thread*> found;
  for (thread* t : watchers) (t->wakes() ? found : waiting).push_back(t);
  watchers = std::move(waiting);
  for (thread* t : found) t->wakes = nullptr, wake(*t);
}

void stop(const char* outcome, std::string summary) {
  if (m.end.outcome.empty()) m.end = {outcome, std::move(summary)};
  if (m.running != nullptr) to_main(*m.running);
  std::fprintf(stderr, "%s\n", m.end.summary.c_str());
  throw m.end;
}

void run_all(const std::function<bool(int rank)>& next_launch) {
  for (int r = 0; r < m.world; ++r) next_launch(r);
  for (int jumps = 0, turns = 0; m.end.outcome.empty();) {
    if (!m.pending.empty() && m.chance(6)) land_one();
    if (++turns % 64 == 0) look_at_waiters();
    thread* t = choose();
    if (t == nullptr) {
      look_at_waiters();
      if ((t = choose()) == nullptr && !m.pending.empty()) {
        land_one();
        continue;
      }
    }
    if (t == nullptr) {
      if (std::all_of(m.ranks.begin(), m.ranks.end(), [](const rank_state& r) { return r.done; })) return;
      if (++jumps > jumps_at_most || !time_passes()) give_up();
      continue;
    }
    switch_to(*t);
    rank_state& rank = m.ranks[std::size_t(t->rank)];
    if (t->state == thread::finished && rank.live == 0 && m.end.outcome.empty()) next_launch(t->rank), jumps = 0;
  }
}

void start_launch(int rank, int blocks, int threads, int shared_bytes, const void* kernel, const void* args,
                  const void* run) {
  rank_state& state = m.ranks[std::size_t(rank)];
  entries.resize(std::size_t(m.world)), m.ready.resize(std::size_t(m.world));
  entries[std::size_t(rank)] = {reinterpret_cast<void (*)(const void*, const void*)>(const_cast<void*>(kernel)), args,
                                run};
  while (int(state.blocks.size()) < blocks) {
    auto b = std::make_unique<block>();
    b->rank = rank, b->number = int(state.blocks.size());
    b->memory = allocate(rank, "shared memory", "", std::size_t(std::max(shared_bytes, 1024)), 4, b->number);
    b->bytes = shared_bytes;
    for (int i = 0; i < threads; ++i) {
      auto t = std::make_unique<thread>();
      t->id = int(m.threads.size()), t->rank = rank, t->block = b->number, t->index = i;
      t->stack = sim::allocate_stack(stack_bytes);
      m.threads.push_back(t.get());
      b->threads.push_back(std::move(t));
    }
    state.blocks.push_back(std::move(b));
  }
  // A kernel comes after everything its stream did before, in both proxies.
  auto begin = std::make_shared<knowledge>(*state.host.base);
  begin->seen.raise(std::size_t(state.host.thread), state.host.now);
  begin->global = begin->seen, begin->shared = begin->seen, begin->fenced = nullptr;
  ++state.host.now;
  for (auto& b : state.blocks) {
    std::fill(b->memory, b->memory + b->bytes, 0xff);
    forget(*find_allocation(b->memory));
    b->barriers.clear(), b->warps.clear(), b->warpgroups.clear();
    for (auto& [at, bar] : b->mbarriers) b->load_components[at] = {bar.component, bar.first + bar.phase + 1};
    b->mbarriers.clear();
    for (auto& t : b->threads) {
      t->variables = {
          {unsigned(t->index), 0, 0}, {unsigned(b->number), 0, 0}, dim3(unsigned(threads)), dim3(unsigned(blocks))};
      t->base = begin;
      t->frame = 0;
      t->lazy = m.seed % 2 == 1 && m.chance(4);
      t->misses.clear();
      for (int i = 0; i < 4; ++i) t->fence[i] = {}, t->unfenced[i].clear();
      sim::prepare(t->fiber, t->stack, stack_bytes, body, t.get());
      wake(*t);
      ++state.live;
    }
  }
}

}  // namespace pk::emulated
