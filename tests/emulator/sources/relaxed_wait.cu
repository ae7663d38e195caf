// A tile arrives from the rank before, with a signal. The wait for the signal is a relaxed load, or (fixed) an acquire;
// then the tile is loaded in bulk.
#include <pk/pk.h>
using namespace pk;

constexpr int fixed = knob("fixed", 0, {0, 1});

struct relaxed_wait {
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

  static PK_DEVICE std::uint32_t look(const std::uint32_t* at) {
    std::uint32_t value;
    if constexpr (fixed)
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    else
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    auto carry = s.carry.open(self);
    const int next = (self.rank() + 1) % self.world();
    carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.x, {0, 0}); },
               [&](part& x, int) { store_async(self, g.box[next], {0, 0}, x); });
    signal(self, g.here, next, 0);
    if (self.leads()) {
      const std::uint32_t wanted = sm90::uses_before(self.epoch) + 1;
      while (std::int32_t(look(sm90::counter_of(self, g.here, self.rank(), 0)) - wanted) < 0) {}
      sm90::fence_async();
    }
    self.sync();
    carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.box[self.rank()], {0, 0}); },
               [&](part& x, int) { store_async(self, g.y, {0, 0}, x); });
  }
};
PK_KERNEL(relaxed_wait)
