// Slabs and mailboxes: what leaves registers and what comes into them. The same in both modes; times are zero
// in functional mode.
#include <algorithm>

#include "world.h"

namespace pk::sim {

namespace {

// A store of registers: what they hold now is what will land.
std::shared_ptr<pending_store> leaving(const tile_ref& v) {
  auto s = std::make_shared<pending_store>();
  s->src = v, s->registers = true, s->was_read = true;
  if (arithmetic()) {
    const auto* from = static_cast<const unsigned char*>(v.data);
    s->snapshot.assign(from, from + std::size_t(v.rows) * v.cols * element_bytes(v.type));
  }
  return s;
}

void check_box(const fiber& f, const box& b, const char* what, int rank, int slot) {
  if (rank < 0 || rank >= w.ask.world)
    report_fault(&f, "out_of_range", printf_string("%s: %s('%s') names rank %d; ranks are 0 to %d", describe(f).c_str(),
                                                   what, b.name.c_str(), rank, w.ask.world - 1));
  if (slot < 0 || slot >= b.slots)
    report_fault(&f, "out_of_range", printf_string("%s: %s('%s') names slot %d; the mailbox has slots 0 to %d",
                                                   describe(f).c_str(), what, b.name.c_str(), slot, b.slots - 1));
}

// A slot is used once in a launch: `last` is the launch in which that was done before.
void use_once(const fiber& f, int& last, const std::string& what) {
  if (last == f.home->launch)
    report_fault(&f, "mailbox_misuse", printf_string("%s %s for the second time in this launch: use another slot",
                                                     describe(f).c_str(), what.c_str()));
  last = f.home->launch;
}

}  // namespace

double slab_load(fiber& f, const tile_ref& v, const tensor_ref& src, coord at) {
  PK_SIM_NOTE_SITE(f);
  check_range(f, "load", src, at, v.rows, v.cols);
  order::slab(f, src, at, v, false);
  demand_load(f, v, src.owner);
  return w.m->load_slab(f, v, src, at);
}

void slab_use(fiber& f, double ready_at) {
  ready_at = w.m->arrival_of(f, ready_at);
  if (ready_at > f.now) {
    f.waited[int(waiting_for::load)] += ready_at - f.now;
    f.now = ready_at;
  }
  charge_transfer(f, ready_at <= f.remote_until, "wait: load");
}

void slab_store(fiber& f, const tensor_ref& dst, coord at, const tile_ref& v) {
  PK_SIM_NOTE_SITE(f);
  check_range(f, "store", dst, at, v.rows, v.cols);
  check_writable(f, dst);
  demand_store(f, v, dst.owner);
  auto s = leaving(v);
  s->dst = dst, s->at = at;
  order::slab(f, dst, at, v, true);
  w.m->store(f, std::move(s));
}

void post(fiber& f, const mailbox_ref& m, int rank, int slot, const tile_ref& v) {
  PK_SIM_NOTE_SITE(f);
  check_box(f, box_of(rank_of(f), m), "post", rank, slot);
  box& b = box_of(rank, m);
  letter& l = b.at(rank_of(f), slot, f.home->launch);
  use_once(f, l.posted, printf_string("posts to mailbox '%s' slot %d of rank %d", b.name.c_str(), slot, rank));
  w.m->publish(f, &l, 0);
  demand_store(f, v, rank);
  auto s = leaving(v);
  s->mail = &l, s->to = rank, s->launch = f.home->launch;
  w.m->store(f, std::move(s));
}

void take(fiber& f, const mailbox_ref& m, int source, int slot, const tile_ref& v) {
  PK_SIM_NOTE_SITE(f);
  box& b = box_of(rank_of(f), m);
  check_box(f, b, "take", source, slot);
  letter& l = b.at(source, slot, f.home->launch);
  use_once(f, l.taken, printf_string("takes mailbox '%s' slot %d from rank %d", b.name.c_str(), slot, source));
  w.m->in_order(f);
  const double asked = f.now;
  while (l.arrived < f.home->launch) {
    f.mailbox = &b, f.slot = slot, f.source = source;
    l.waiting = &f;
    park(f, waiting_for::mailbox);
  }
  w.m->observe(f, &l, 0);
  w.m->read_letter(f, l, v, asked);
  follow_letter(f, l, source != rank_of(f));
}

void deliver(letter& l, int launch, const std::vector<unsigned char>& data, double at) {
  l.arrived = launch, l.arrived_at = at, l.data = data;
  if (l.waiting != nullptr) w.m->ready(*l.waiting, at);
  l.waiting = nullptr;
}

}  // namespace pk::sim
