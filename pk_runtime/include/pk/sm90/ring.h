// Pipeline rings: a few slots of shared memory that one role fills and another empties. Each slot has two
// mbarriers: `full` completes when the producers have arrived and their bulk loads have landed, `empty` when
// the consumers have arrived. A cursor counts through the slots, so a role opens it once, before its tasks.
#pragma once

#include <pk/sm90/layout.h>

namespace pk {
namespace sm90 {

// The next slot of a cursor and the parity of its mbarriers' phase.
template <int N>
struct position {
  int slot = 0;
  std::uint32_t parity = 0;
  PK_DEVICE void advance() {
    if (++slot == N) slot = 0, parity ^= 1;
  }
};

// Stored is what lies in the ring: Slot, or a type derived from it. Arrivals is how many threads arrive
// on `full` and on `empty`: 1 for an issuer, each warp of G warpgroups for a group.
template <class Slot, class Stored, int N, int FullArrivals, int EmptyArrivals>
struct ring {
  static_assert(N >= 1 && N <= 16, "a ring has 1 to 16 slots");
  static_assert(sizeof(Slot) % unit_bytes == 0, "a slot is a tile or a struct of tiles");
  static constexpr int units = sizeof(Slot) / unit_bytes;
  Stored slots[N];

  // By one thread, in place. The mbarriers are in the runtime's part of shared memory.
  PK_DEVICE ring() {
    this_block().ring_at[unit()] = this_block().rings++;
    PK_UNROLL
    for (int i = 0; i < N; ++i) {
      mbarrier_init(full(i), FullArrivals);
      mbarrier_init(empty(i), EmptyArrivals);
    }
  }
  ring(const ring&) = delete;

  PK_DEVICE int unit() const { return unit_of(slots); }
  PK_DEVICE std::uint32_t full(int slot) const { return shared_address(this_block().full + unit() + slot * units); }
  PK_DEVICE std::uint32_t empty(int slot) const { return shared_address(this_block().empty + unit() + slot * units); }

  // All threads of a warp may have written the slot; its first one arrives for them.
  template <int Arrivals>
  static PK_DEVICE void arrive(std::uint32_t bar) {
    if constexpr (Arrivals > 1) {
      __syncwarp();
      if (fragment::lane() == 0) mbarrier_arrive(bar);
    } else {
      mbarrier_arrive(bar);
    }
  }

  struct producer_cursor {
    using slot = Slot;
    ring& r;
    worker self;
    bool leads;
    position<N> at = {};

    PK_DEVICE Stored& acquire() {
      if (FullArrivals > 1 || leads)
        await_phase(self, failure_kind::free_slot, r.unit(), at.slot, r.empty(at.slot), at.parity ^ 1);
      return r.slots[at.slot];
    }
    template <class T, int R, int C>
    PK_DEVICE void load(tile<T, R, C>& t, const layout<T>& src, coord where) {
      static_assert(FullArrivals == 1, "a store_ring is filled from registers");
      if (!leads) return;
      const std::uint32_t bar = r.full(at.slot);
      mbarrier_expect(bar, t.bytes);
      each_box(self, src, where, t, [&](int col, int row, int plane, std::uint32_t dst) {
        tma_load(dst, src.map, col, row, plane, bar);
      });
    }
    PK_DEVICE void commit() {
      if (FullArrivals > 1 || leads) arrive<FullArrivals>(r.full(at.slot));
      at.advance();
    }
  };

  struct consumer_cursor {
    using slot = Slot;
    ring& r;
    worker self;
    bool leads;
    position<N> next = {}, oldest = {};

    PK_DEVICE Slot& wait() {
      await_phase(self, failure_kind::data, r.unit(), next.slot, r.full(next.slot), next.parity);
      Slot& s = r.slots[next.slot];
      next.advance();
      return s;
    }
    // Whoever stored from the slot waits until it has been read.
    PK_DEVICE void release() {
      if (leads) bulk_wait_read();
      arrive<EmptyArrivals>(r.empty(oldest.slot));
      oldest.advance();
    }
  };

 protected:
  template <class Worker> PK_DEVICE producer_cursor open_producer(Worker self) { return {*this, self, self.leads()}; }
  template <class Worker> PK_DEVICE consumer_cursor open_consumer(Worker self) { return {*this, self, self.leads()}; }
};

}  // namespace sm90

// loader -> consumer (or a communicator's own loads).
template <class Slot, int N, int G = 2>
struct load_ring : sm90::ring<Slot, Slot, N, 1, threads_of(G) / 32> {
  PK_DEVICE auto producer(issuer self) { return this->open_producer(self); }
  PK_DEVICE auto producer(group<G> self) { return this->open_producer(self); }
  PK_DEVICE auto consumer(group<G> self) { return this->open_consumer(self); }
};

// consumer -> storer.
template <class Slot, int N, int G = 2>
struct store_ring : sm90::ring<Slot, sm90::ring_slot<Slot>, N, threads_of(G) / 32, 1> {
  PK_DEVICE auto producer(group<G> self) { return this->open_producer(self); }
  PK_DEVICE auto consumer(issuer self) { return this->open_consumer(self); }
};

// loader -> storer, nothing computed in between.
template <class Slot, int N>
struct copy_ring : sm90::ring<Slot, Slot, N, 1, 1> {
  PK_DEVICE auto producer(issuer self) { return this->open_producer(self); }
  PK_DEVICE auto consumer(issuer self) { return this->open_consumer(self); }
};

}  // namespace pk
