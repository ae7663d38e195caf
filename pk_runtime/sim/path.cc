#include "path.h"

#include <algorithm>

#include "trace.h"
#include "world.h"

namespace pk::sim {

namespace {

slot_path& of(block& b, const ring_core& r, int slot) {
  if (b.slot_paths.empty()) b.slot_paths.resize(b.rings.size() * max_depth);
  return b.slot_paths[std::size_t(r.id) * max_depth + slot];
}

void advance(path& p, double now, spent kind) {
  p.us[int(kind)] += now - p.until;
  p.until = now;
}

}  // namespace

void charge(fiber& f, spent kind, const char* what) {
  if (!w.ask.timing || f.now <= f.went.until) return;
  trace_worker(f, what, f.went.until, f.now);
  advance(f.went, f.now, kind);
}

void follow(fiber& f, const path& cause, spent kind, const char* what) {
  if (!w.ask.timing || f.now <= f.went.until) return;
  trace_worker(f, what, f.went.until, f.now);
  if (cause.until > 0 && cause.until <= f.now) f.went = cause;
  advance(f.went, f.now, kind);
}

void charge_transfer(fiber& f, bool remote, const char* what) { charge(f, remote ? spent::link : spent::memory, what); }

void charge_stores(fiber& f, bool reads_only) {
  if (!w.ask.timing || f.now <= f.went.until) return;
  const bool remote = std::any_of(f.stores.begin(), f.stores.end(), [&](const auto& s) {
    return s->target() != rank_of(f) && (reads_only ? s->read_at : s->known_at) >= f.now;
  });
  charge_transfer(f, remote, reads_only ? "store: leaving" : "store: landing");
}

void follow_letter(fiber& f, const letter& l, bool remote) {
  if (!w.ask.timing) return;
  const double taken = f.now;
  f.now = std::min(taken, std::max(l.arrived_at, f.went.until));
  follow(f, l.went, remote ? spent::link : spent::memory, "wait: mailbox");
  f.now = taken;
  charge(f, spent::memory, "take");
}

void slot_filled(fiber& f, const ring_core& r, int slot) {
  if (w.ask.timing) of(*f.home, r, slot).filled = f.went;
}

void slot_landed(block& b, const ring_core& r, int slot, double at) {
  double& until = of(b, r, slot).remote_until;
  until = std::max(until, at);
}

void slot_freed(fiber& f, const ring_core& r, int slot) {
  if (w.ask.timing) of(*f.home, r, slot).freed = f.went;
}

void follow_filled(fiber& f, const ring_core& r, int slot) {
  if (!w.ask.timing) return;
  const slot_path& p = of(*f.home, r, slot);
  follow(f, p.filled, r.full_at[slot] <= p.remote_until ? spent::link : spent::memory, "wait: ring data");
}

void follow_freed(fiber& f, const ring_core& r, int slot) {
  if (!w.ask.timing) return;
  slot_path& p = of(*f.home, r, slot);
  follow(f, p.freed, spent::synchronization, "wait: ring slot");
  p.remote_until = 0;
}

}  // namespace pk::sim
