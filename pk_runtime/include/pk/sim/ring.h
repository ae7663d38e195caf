// Pipeline rings: a few slots of shared memory that one role fills and another empties.
#pragma once

#include <pk/sim/layout.h>

namespace pk {
namespace sim {

template <class Slot, int N>
struct ring {
  static_assert(N >= 1 && N <= max_depth, "a ring has 1 to 16 slots");
  Slot slots[N];
  ring_core core;

  ring() {
    claim_shared(16 * N);  // a full and an empty mbarrier per slot
    ring_init(core, N);
  }
  ring(const ring&) = delete;

  struct producer_cursor {
    using slot = Slot;
    ring& r;
    fiber* f;
    Slot& acquire() { return r.slots[ring_acquire(*f, r.core)]; }
    template <class T, int R, int C>
    void load(tile<T, R, C>& t, const layout<T>& src, coord at) {
      ring_load(*f, r.core, t.ref(), src.ref, at);
    }
    void commit() { ring_commit(*f, r.core); }
  };

  struct consumer_cursor {
    using slot = Slot;
    ring& r;
    fiber* f;
    Slot& wait() { return r.slots[ring_wait(*f, r.core)]; }
    void release() { ring_release(*f, r.core); }
  };

  producer_cursor fill(worker self) { return {*this, self.f}; }
  consumer_cursor empty(worker self) { return {*this, self.f}; }
};

}  // namespace sim

// Which worker fills and which empties a ring is part of its type, as on a GPU, where the mbarriers of a
// slot count the threads that arrive.

// loader -> consumer (or a communicator's own loads).
template <class Slot, int N, int G = 2>
struct load_ring : sim::ring<Slot, N> {
  auto producer(issuer self) { return this->fill(self); }
  auto producer(group<G> self) { return this->fill(self); }
  auto consumer(group<G> self) { return this->empty(self); }
};

// consumer -> storer.
template <class Slot, int N, int G = 2>
struct store_ring : sim::ring<Slot, N> {
  auto producer(group<G> self) { return this->fill(self); }
  auto consumer(issuer self) { return this->empty(self); }
};

// loader -> storer, nothing computed in between.
template <class Slot, int N>
struct copy_ring : sim::ring<Slot, N> {
  auto producer(issuer self) { return this->fill(self); }
  auto consumer(issuer self) { return this->empty(self); }
};

}  // namespace pk
