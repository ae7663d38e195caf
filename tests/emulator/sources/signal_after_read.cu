// A tile is pushed to the next rank by a bulk store and signalled. Before the signal, the thread waits for the store:
// only until its source may be overwritten, or (fixed) until the data has landed.
#include <pk/pk.h>
using namespace pk;

constexpr int fixed = knob("fixed", 0, {0, 1});

struct signal_after_read {
  using part = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, y;
    parallel_layout<bf16> box;
    signals here;
  };
  struct comm_shared {
    mover<part, 1, 1> carry;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.scratch("box", g.box, 1, g.x.rows, g.x.cols);
    h.signals("here", g.here, 1, 1);
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    auto carry = s.carry.open(self);
    const int next = (self.rank() + 1) % self.world();
    carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.x, {0, 0}); },
               [&](part& x, int) { store_async(self, g.box[next], {0, 0}, x); });
    if (self.leads()) {
      if constexpr (fixed) sm90::bulk_wait();
      else sm90::bulk_wait_read();
      sm90::add_release(sm90::counter_of(self, g.here, next, 0), 1u);  // the signal
    }
    wait(self, g.here, 0, 1);
    carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.box[self.rank()], {0, 0}); },  // the reader
               [&](part& x, int) { store_async(self, g.y, {0, 0}, x); });
  }
};
PK_KERNEL(signal_after_read)
