// y = the number of the tile, by way of one shared tile that every store reads before the next one is written.
#include <pk/pk.h>
using namespace pk;

struct fill {
  using part = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, y;
  };
  struct comm_shared {
    part result;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    reg_tile<float, 64, 64, 1> values;
    for (int t : self.tasks(g.y.tiles_across<part>())) {
      map(self, values, [&](float, int, int) { return float(t); });
      drain_reads(self);
      store(self, s.result, values);
      store_async(self, g.y, {0, t}, s.result);
    }
  }
};
PK_KERNEL(fill)
