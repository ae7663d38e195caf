// y = the x of the rank before, stored from registers; a tile's arrival is signalled to every rank.
#include <pk/pk.h>
using namespace pk;

struct tell_all {
  using part = slab<bf16, 64, 64, 1>;
  struct args {
    layout<bf16> x, y;
    parallel_layout<bf16> box;
    signals here;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.scratch("box", g.box, 1, g.x.rows, g.x.cols);
    h.signals("here", g.here, g.x.tiles_across<part>(), h.world());
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared&) {
    part v;
    for (int t : self.tasks(g.x.tiles_across<part>())) {
      load(self, v, g.x, {0, t});
      store(self, g.box[(self.rank() + 1) % self.world()], {0, t}, v);
      signal_all(self, g.here, t);
      wait(self, g.here, t, self.world());
      load(self, v, g.box[self.rank()], {0, t});
      store(self, g.y, {0, t}, v);
    }
  }
};
PK_KERNEL(tell_all)
