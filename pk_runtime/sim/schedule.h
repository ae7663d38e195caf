// Schedules of functional mode: who goes on next, and when what was issued takes effect. A strategy decides and does
// nothing itself; functional.cc does what it decides. One file per strategy: schedule_NAME.cc.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "world.h"

namespace pk::sim {

// An asynchronous operation that has been issued and has not taken effect.
struct operation {
  enum kind_t { load, store, signal } kind;
  int rank;              // who issued it
  std::uint64_t id = 0;  // its issuer's id, plus how many that one has issued: the same in every schedule
  past known;            // what its issuer knew when it was issued
  operation(kind_t k, int r) : kind(k), rank(r) {}
  ring_core* ring = nullptr;
  int slot = 0;
  tile_ref tile{};
  tensor_ref src{};
  coord at{0, 0};
  std::shared_ptr<pending_store> stored;
  counters* counter = nullptr;
  stamp carried;  // what a signal publishes
  int launch = 0;

  bool done() const { return kind == store && stored->landed; }  // its issuer has waited for it meanwhile
};

// What happens next: a runnable fiber goes on, or a pending operation takes effect. `index` is its place in the list.
struct step {
  enum kind_t { resume, land } kind;
  std::size_t index;
};

struct schedule {
  virtual ~schedule() = default;

  // Chooses among runnable fibers and pending operations; one of the two lists at least has an entry. They are in no
  // order that means anything, but for the first runnable fiber of a strategy that resumes only first ones: it is the
  // one that became runnable first.
  virtual step next(const std::deque<fiber*>& runnable, const std::vector<operation>& pending) = 0;

  virtual bool lands_at_once() const { return false; }   // what is issued takes effect there and then
  virtual bool interrupts() { return false; }            // whether others may come between two loads of slabs
  virtual bool hurries() const { return false; }         // ranks begin the next launch while others still run
  virtual bool waits_are_steps() const { return false; }  // a wait yields even when it need not
};

std::unique_ptr<schedule> make_eager();
std::unique_ptr<schedule> make_latest();
std::unique_ptr<schedule> make_random(std::uint64_t seed, int world);
std::unique_ptr<schedule> make_pct(std::uint64_t seed, int depth, std::uint64_t horizon);
std::unique_ptr<schedule> make_exhaustive(const plan&);

// The strategy of a plan; ends the run when there is none of that name.
std::unique_ptr<schedule> make_schedule(const plan&);

}  // namespace pk::sim
