// Two barriers back to back. Each rank adds one to everybody's counter and waits until its own is exactly the number of
// ranks, then takes that number off again. Fixed: counters only grow, and a wait wants at least its count.
#include <pk/pk.h>
using namespace pk;

constexpr int fixed = knob("fixed", 0, {0, 1});

struct barrier_overshoot {
  struct args {
    layout<bf16> x, y;
    signals all;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.signals("all", g.all, 1, 1);
  }

  static PK_DEVICE void meet(group<1> self, const args& g, std::uint32_t number) {
    const auto world = std::uint32_t(self.world());
    std::uint32_t* const own = g.all.counters[self.rank()];
    for (int r = 0; r < self.world(); ++r) sm90::add_release(g.all.counters[r], 1u);
    if constexpr (fixed) {
      sm90::await_counter(self, sm90::failure_kind::barrier, g.all.id, 0, own, (number + 1) * world);
    } else {
      const std::uint64_t start = sm90::global_time();
      for (std::uint32_t seen; (seen = sm90::load_acquire(own)) != world;) {  // exactly
        const std::uint64_t waited = sm90::global_time() - start;
        if (waited > self.run->timeout_ns)
          sm90::stop_waiting(self, sm90::failure_kind::barrier, g.all.id, 0, seen, world, waited);
      }
      sm90::add_release(own, 0u - world);
    }
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared&) {
    if (self.leads()) {
      meet(self, g, 2 * self.epoch);
      meet(self, g, 2 * self.epoch + 1);
    }
  }
};
PK_KERNEL(barrier_overshoot)
