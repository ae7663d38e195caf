// y = the x of the rank before, stored from registers and signalled twice a tile: half of the rows each. The
// receiver waits for the first half before the second.
#include <pk/pk.h>
using namespace pk;

struct exchange {
  using half = slab<bf16, 32, 64, 1>;
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
    h.signals("here", g.here, g.x.tiles_across<half>(), 2);
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared&) {
    const int next = (self.rank() + 1) % self.world();
    half v;
    for (int t : self.tasks(g.x.tiles_across<half>())) {
      for (int row = 0; row < 2; ++row) {
        load(self, v, g.x, {row, t});
        store(self, g.box[next], {row, t}, v);
        signal(self, g.here, next, t);
      }
      for (int row = 0; row < 2; ++row) {
        wait(self, g.here, t, row + 1);
        load(self, v, g.box[self.rank()], {row, t});
        store(self, g.y, {row, t}, v);
      }
    }
  }
};
PK_KERNEL(exchange)
