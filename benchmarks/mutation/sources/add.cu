// y = the sum of all ranks' x, by additions of all GPUs to one address: what PTX gives no guarantee for.
#include <pk/pk.h>
using namespace pk;

struct add_everywhere {
  using part = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, y;
    parallel_layout<bf16> sum;
    barrier_state all;
  };
  struct comm_shared {
    mover<part, 1, 1> carry;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.scratch("sum", g.sum, 1, g.x.rows, g.x.cols);
    h.barrier("all", g.all);
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    auto carry = s.carry.open(self);
    for (int t : self.tasks(g.x.tiles_across<part>()))
      carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.x, {0, t}); },
                 [&](part& x, int) {
                   for (int r = 0; r < self.world(); ++r) store_add_async(self, g.sum[r], {0, t}, x);
                 });
    barrier(self, g.all);
    for (int t : self.tasks(g.x.tiles_across<part>()))
      carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.sum[self.rank()], {0, t}); },
                 [&](part& x, int) { store_async(self, g.y, {0, t}, x); });
  }
};
PK_KERNEL(add_everywhere)
