// y = the x of the rank before, by way of its successor's memory; a barrier before each half is read, so that two
// barriers follow each other without anything in between on a fast rank.
#include <pk/pk.h>
using namespace pk;

struct barriers {
  using part = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, y;
    parallel_layout<bf16> box;
    barrier_state all;
  };
  struct comm_shared {
    mover<part, 1, 1> carry;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.scratch("box", g.box, 1, g.x.rows, g.x.cols);
    h.barrier("all", g.all);
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    auto carry = s.carry.open(self);
    const int next = (self.rank() + 1) % self.world(), tiles = g.x.tiles_across<part>();
    for (int t = 0; t < tiles; ++t) {
      if (t % self.blocks() == self.block())
        carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.x, {0, t}); },
                   [&](part& x, int) { store_async(self, g.box[next], {0, t}, x); });
      barrier(self, g.all);
      if (t % self.blocks() != self.block()) continue;
      carry.move(1, [&](auto& loads, part& x, int) { loads.load(x, g.box[self.rank()], {0, t}); },
                 [&](part& x, int) { store_async(self, g.y, {0, t}, x); });
    }
  }
};
PK_KERNEL(barriers)
