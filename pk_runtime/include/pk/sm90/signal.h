// Signals: counters in every rank's memory that only grow. A wait names how many signals of this launch
// it wants; epochs make that absolute.
//
// Every counter exists twice and launches use the two in turn. A rank enters a launch only when all peers
// have entered the one before it (launch.h), so while somebody still waits in launch n, nobody signals n + 2:
// the signals of a fast rank's next launch cannot stand in for those that a slow one owes to this one.
#pragma once

#include <pk/sm90/worker.h>

namespace pk {

struct signals {
  std::uint32_t* counters[max_ranks] = {};  // [2][slots] on each rank
  int slots = 0, per_launch = 0, id = -1;
};

struct barrier_state {
  std::uint64_t* counters[max_ranks] = {};
  int id = -1;
};

namespace sm90 {

PK_DEVICE void check_slot(const worker& self, const signals& s, int rank, int slot) {
  if (unsigned(rank) < unsigned(self.world()) && unsigned(slot) < unsigned(s.slots)) return;
  stop(self, failure_kind::out_of_range, [&](failure& f) { f.object = s.id, f.slot = slot, f.plane = rank; });
}

PK_DEVICE std::uint32_t* counter_of(const worker& self, const signals& s, int rank, int slot) {
  return s.counters[rank] + int(copy_of(self.epoch)) * s.slots + slot;
}

}  // namespace sm90

// Adds one to counter `slot` of `rank`, after everything this worker stored has landed: bulk stores of its
// leading thread are complete, register stores of all its threads are ordered before by the barrier.
template <class Worker>
PK_DEVICE void signal(Worker self, const signals& s, int rank, int slot) {
  self.sync();
  if (!self.leads()) return;
  sm90::check_slot(self, s, rank, slot);
  sm90::bulk_wait();  // complete, not merely read
  sm90::add_release(sm90::counter_of(self, s, rank, slot), 1u);
  PK_MARK(self, sm90::moment::signals, rank);
}

// signal on every rank, the own one included.
template <class Worker>
PK_DEVICE void signal_all(Worker self, const signals& s, int slot) {
  self.sync();
  if (!self.leads()) return;
  sm90::check_slot(self, s, self.rank(), slot);
  sm90::bulk_wait();
  sm90::fence_system();
  for (int rank = 0; rank < self.world(); ++rank) {
    sm90::add_relaxed(sm90::counter_of(self, s, rank, slot), 1u);
    PK_MARK(self, sm90::moment::signals, rank);
  }
}

// Returns when this rank's counter `slot` has had `count` signals in this launch. What the signallers
// stored before is visible afterwards, also to asynchronous loads.
template <class Worker>
PK_DEVICE void wait(Worker self, const signals& s, int slot, int count) {
  if (self.leads()) {
    sm90::check_slot(self, s, self.rank(), slot);
    const std::uint32_t wanted = sm90::uses_before(self.epoch) * std::uint32_t(s.per_launch) + std::uint32_t(count);
    std::uint32_t* const own = sm90::counter_of(self, s, self.rank(), slot);
    sm90::await_counter(self, sm90::failure_kind::signal, s.id, slot, own, wanted);
    sm90::fence_async();
  }
  self.sync();
}

// Every block that runs this role, on every rank, has arrived, and what they stored has landed.
template <class Worker>
PK_DEVICE void barrier(Worker self, const barrier_state& b) {
  self.sync();
  if (self.leads()) {
    std::uint64_t* const own = b.counters[self.rank()];
    const std::uint64_t arrivals = std::uint64_t(self.world()) * self.blocks();
    // Read before arriving: without this block's arrival the counter cannot reach the target.
    const std::uint64_t target = (sm90::load_acquire(own) / arrivals + 1) * arrivals;
    sm90::bulk_wait();
    sm90::fence_system();
    for (int r = 0; r < self.world(); ++r) sm90::add_relaxed(b.counters[r], std::uint64_t(1));
    sm90::await_counter(self, sm90::failure_kind::barrier, b.id, 0, own, target);
    sm90::fence_async();
  }
  self.sync();
}

}  // namespace pk
