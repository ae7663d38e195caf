// Rings, signals and barriers: who may go on and who waits. The same in both modes; times are zero in
// functional mode.
#include <algorithm>

#include "world.h"

namespace pk::sim {

namespace {

[[noreturn]] void misuse(const fiber& f, const ring_core& r, const char* what) {
  report_fault(&f, "ring_misuse", printf_string("ring #%d of %s: %s", r.id, describe(f).c_str(), what));
}

bool has_data(const ring_core& r) {
  return r.committed > r.waited && r.loads_in_flight[r.waited % r.depth] == 0;
}

void wake(fiber*& waiting, double at) {
  if (waiting == nullptr) return;
  fiber* f = waiting;
  waiting = nullptr;
  w.m->ready(*f, at);
}

}  // namespace

void load_landed(ring_core& r, int slot, double at) {
  r.full_at[slot] = std::max(r.full_at[slot], at);
  if (--r.loads_in_flight[slot] == 0 && has_data(r) && int(r.waited % r.depth) == slot)
    wake(r.waiting_consumer, r.full_at[slot]);
}

int ring_acquire(fiber& f, ring_core& r) {
  PK_SIM_NOTE_SITE(f);
  r.producer = &f;
  if (r.acquired != r.committed) misuse(f, r, "acquire() again before commit() of the slot that is open");
  while (int(r.acquired - r.released) >= r.depth) {
    if (r.waiting_producer != nullptr) misuse(f, r, "two roles fill the same ring");
    r.waiting_producer = &f;
    f.ring = &r;
    park(f, waiting_for::free_slot);
  }
  const int slot = int(r.acquired % r.depth);
  w.m->observe(f, &r.released, r.acquired - unsigned(r.depth));
  f.now = std::max(f.now, r.free_at[slot]);
  follow_freed(f, r, slot);
  r.full_at[slot] = f.now;
  r.loads_in_flight[slot] = 0;
  ++r.acquired;
  order::acquire_slot(f, r, slot);
  return slot;
}

void ring_load(fiber& f, ring_core& r, const tile_ref& tile, const tensor_ref& src, coord at) {
  PK_SIM_NOTE_SITE(f);
  demand_load(f, tile, src.owner);
  if (r.acquired == r.committed) misuse(f, r, "load() without an acquired slot");
  check_range(f, "load", src, at, tile.rows, tile.cols);
  order::load(f, r, int(r.committed % r.depth), tile, src, at);
  w.m->load(f, r, int(r.committed % r.depth), tile, src, at);
}

void ring_commit(fiber& f, ring_core& r) {
  PK_SIM_NOTE_SITE(f);
  if (r.acquired == r.committed) misuse(f, r, "commit() without an acquired slot");
  const int slot = int(r.committed % r.depth);
  r.full_at[slot] = std::max(r.full_at[slot], f.now);
  w.m->publish(f, &r.committed, r.committed);
  order::commit_slot(f, r, slot);
  slot_filled(f, r, slot);
  ++r.committed;
  if (has_data(r)) wake(r.waiting_consumer, r.full_at[r.waited % r.depth]);
}

int ring_wait(fiber& f, ring_core& r) {
  PK_SIM_NOTE_SITE(f);
  r.consumer = &f;
  if (int(r.waited - r.released) >= r.depth) misuse(f, r, "wait() for more slots than the ring has without release()");
  while (!has_data(r)) {
    if (r.waiting_consumer != nullptr) misuse(f, r, "two roles empty the same ring");
    r.waiting_consumer = &f;
    f.ring = &r;
    park(f, waiting_for::data);
  }
  const int slot = int(r.waited % r.depth);
  if (r.full_at[slot] > f.now) {
    f.waited[int(waiting_for::data)] += r.full_at[slot] - f.now;
    f.now = r.full_at[slot];
  }
  w.m->observe(f, &r.committed, r.waited);
  follow_filled(f, r, slot);
  ++r.waited;
  order::wait_slot(f, r, slot);
  return slot;
}

void ring_release(fiber& f, ring_core& r) {
  PK_SIM_NOTE_SITE(f);
  if (r.released == r.waited) misuse(f, r, "release() of a slot that was not waited for");
  w.m->drain(f, true);
  order::drained(f, true);
  order::release_slot(f, r, int(r.released % r.depth));
  r.free_at[r.released % r.depth] = f.now;
  w.m->publish(f, &r.released, r.released);
  slot_freed(f, r, int(r.released % r.depth));
  ++r.released;
  wake(r.waiting_producer, f.now);
}

// What is left over does no harm while a block has fewer tasks than the ring has slots, which is how it hides at small
// shapes: so it is a fault at any shape.
void check_rings(const block& b) {
  for (const ring_core* r : b.rings) {
    const struct { std::uint32_t begun, ended; const char* what; } steps[] = {
        {r->acquired, r->committed, "acquired and never committed"},
        {r->committed, r->waited, "filled and never waited for"},
        {r->waited, r->released, "waited for and never released"}};
    for (const auto& step : steps)
      if (step.begun != step.ended)
        report_fault(nullptr, "ring_misuse",
                     printf_string("ring #%d of rank %d block %d (launch %d): of %u slots used, %u were %s; with more tasks "
                                   "than its %d slots a role would wait without end, or data would be lost",
                                   r->id, b.rank, b.index, b.launch, r->acquired, step.begun - step.ended, step.what,
                                   r->depth));
  }
}

void drain_reads(fiber& f) {
  PK_SIM_NOTE_SITE(f);
  w.m->drain(f, true);
  order::drained(f, true);
  order::meet(f);
}

void mma_issue(fiber& f, double flops) {
  demand_of(f).flops += flops;
  w.m->mma_issue(f, flops);
}

void mma_reads(fiber& f, const tile_ref& a, const tile_ref& b) {
  PK_SIM_NOTE_SITE(f);
  order::multiply(f, a, b);
}

void mma_wait(fiber& f, int pending) {
  w.m->mma_wait(f, pending);
  order::multiplied(f, pending);
}

void shared_access(fiber& f, const tile_ref& tile, bool write) {
  PK_SIM_NOTE_SITE(f);
  order::touch(f, tile, write);
}

void vector_work(fiber& f, double elements, double bytes) {
  demand_of(f).elements += elements;
  w.m->vector_work(f, elements, bytes);
}

void check_writable(const fiber& f, const tensor_ref& dst) {
  const allocation& a = allocation_of(dst);
  if (a.input)
    report_fault(&f, "input_overwritten", printf_string("%s stores to '%s' of rank %d, which is an input",
                                                        describe(f).c_str(), a.name.c_str(), dst.owner));
}

void store_async(fiber& f, const tensor_ref& dst, coord at, const tile_ref& src, bool add) {
  PK_SIM_NOTE_SITE(f);
  check_range(f, add ? "store_add_async" : "store_async", dst, at, src.rows, src.cols);
  check_writable(f, dst);
  demand_store(f, src, dst.owner);
  auto s = std::make_shared<pending_store>();
  s->dst = dst, s->at = at, s->src = src, s->add = add;
  order::store(f, dst, at, src, add);
  w.m->store(f, std::move(s));
}

namespace {

void check_signal(const fiber& f, const counters& c, const char* what, int rank, int slot) {
  if (rank < 0 || rank >= w.ask.world)
    report_fault(&f, "out_of_range", printf_string("%s: %s('%s') names rank %d; ranks are 0 to %d", describe(f).c_str(),
                                                   what, c.name.c_str(), rank, w.ask.world - 1));
  if (slot < 0 || slot >= c.slots)
    report_fault(&f, "out_of_range", printf_string("%s: %s('%s') names slot %d; the object has slots 0 to %d",
                                                   describe(f).c_str(), what, c.name.c_str(), slot, c.slots - 1));
}

void wait_for(fiber& f, counters& c, int slot, std::uint64_t wanted, waiting_for reason) {
  const int index = c.index(slot, f.home->launch);
  w.m->look(f);
  w.m->in_order(f);
  f.counter = &c, f.slot = slot, f.wanted = wanted;
  if (arithmetic()) c.waited.insert({f.home->launch, slot});
  if (c.value[index] >= c.base(f.home->launch) + wanted && w.m->pauses_at_waits()) {
    w.m->ready(f, f.now);
    park(f, reason);
  }
  while (c.value[index] < c.base(f.home->launch) + wanted) {
    c.waiting[index].push_back(&f);
    park(f, reason);
  }
  f.now = std::max(f.now, c.changed_at[index]);
  follow(f, c.went[index], spent::synchronization, reason == waiting_for::signal ? "wait: signal" : "wait: barrier");
}

}  // namespace

void deliver(counters& c, int slot, int launch, int from, double at) {
  const int index = c.index(slot, launch);
  ++c.value[index];
  ++c.from[launch][std::size_t(slot) * w.ask.world + from];
  if (at >= c.changed_at[index] && w.running != nullptr) c.went[index] = w.running->went;
  c.changed_at[index] = std::max(c.changed_at[index], at);
  auto waiting = c.waiting.find(index);
  if (waiting == c.waiting.end()) return;
  std::erase_if(waiting->second, [&](fiber* f) {
    if (c.value[index] < c.base(f->home->launch) + f->wanted) return false;
    w.m->ready(*f, c.changed_at[index]);
    return true;
  });
}

void send_signal(fiber& f, const signal_ref& s, int rank, int slot, bool released) {
  ++demand_of(f).signals;
  counters& theirs = counters_of(rank, s);
  theirs.roles |= 1u << int(f.role);
  if (arithmetic()) theirs.sent_at[{f.home->launch, rank_of(f), slot}] = f.at;
  w.m->post_signal(f, theirs, rank, slot, released);
}

void all_has_landed(fiber& f) {
  w.m->drain(f, false);
  order::drained(f, false);
  order::meet(f);
}

void signal(fiber& f, const signal_ref& s, int rank, int slot) {
  PK_SIM_NOTE_SITE(f);
  check_signal(f, counters_of(rank_of(f), s), "signal", rank, slot);
  all_has_landed(f);
  send_signal(f, s, rank, slot, false);
}

void signal_all(fiber& f, const signal_ref& s, int slot) {
  PK_SIM_NOTE_SITE(f);
  check_signal(f, counters_of(rank_of(f), s), "signal", rank_of(f), slot);
  all_has_landed(f);
  for (int i = 1; i <= w.ask.world; ++i) send_signal(f, s, (rank_of(f) + i) % w.ask.world, slot, i > 1);
}

void wait(fiber& f, const signal_ref& s, int slot, int count) {
  PK_SIM_NOTE_SITE(f);
  counters& c = counters_of(rank_of(f), s);
  check_signal(f, c, "wait", rank_of(f), slot);
  wait_for(f, c, slot, count < 0 ? 0 : count, waiting_for::signal);
  order::wait(f, c, slot, count < 0 ? 0 : count);
}

void barrier(fiber& f, const signal_ref& s) {
  PK_SIM_NOTE_SITE(f);
  counters& c = counters_of(rank_of(f), s);
  all_has_landed(f);
  w.m->in_order(f);
  const std::uint64_t arrivals = std::uint64_t(w.ask.world) * blocks_of(f);
  const std::uint64_t target = (c.value[0] / arrivals + 1) * arrivals;
  for (int r = 0; r < w.ask.world; ++r) w.m->post_signal(f, counters_of(r, s), r, 0, r > 0);
  wait_for(f, c, 0, target, waiting_for::barrier);
  order::wait(f, c, 0, target);
}

}  // namespace pk::sim
