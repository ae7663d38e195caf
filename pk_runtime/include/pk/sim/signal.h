// Signals: counters in every rank's memory that only grow. A wait names how many signals of this launch
// it wants; the epochs behind that are the runtime's.
#pragma once

#include <pk/sim/worker.h>

namespace pk {

struct signals {
  sim::signal_ref ref;
};

struct barrier_state {
  sim::signal_ref ref;
};

// Adds one to counter `slot` of `rank`, after everything this worker stored has landed.
template <class Worker>
void signal(Worker self, const signals& s, int rank, int slot) {
  sim::signal(*self.f, s.ref, rank, slot);
}

// signal on every rank, the own one included.
template <class Worker>
void signal_all(Worker self, const signals& s, int slot) {
  sim::signal_all(*self.f, s.ref, slot);
}

// Returns when this rank's counter `slot` has had `count` signals in this launch. What the signallers
// stored before is visible afterwards, also to asynchronous loads.
template <class Worker>
void wait(Worker self, const signals& s, int slot, int count) {
  sim::wait(*self.f, s.ref, slot, count);
}

// Every block that runs this role, on every rank, has arrived, and what they stored has landed.
template <class Worker>
void barrier(Worker self, const barrier_state& b) {
  sim::barrier(*self.f, b.ref);
}

}  // namespace pk
