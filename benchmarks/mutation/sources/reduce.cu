// y = the sum of all ranks' x: bulk loads from peers, added in registers, a bulk store of the result.
#include <pk/pk.h>
using namespace pk;

struct reduce_kernel {
  using part = tile<bf16, 64, 64>;
  struct args {
    parallel_layout<bf16> x;
    layout<bf16> y;
  };
  struct comm_shared {
    reducer<part, 2, 1> add;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    auto add = s.add.open(self);
    for (int t : self.tasks(g.y.tiles_across<part>())) reduce(add, g.y, {0, t}, g.x);
  }
};
PK_KERNEL(reduce_kernel)
