// All-to-all of small chunks: every rank posts its chunks to their receivers with the arrival in the data. One
// crossing, no barrier, twice the bytes.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 1, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2, 4});  // of 16 bytes a thread

struct alltoall_ll {
  using team = group<warpgroups>;
  using part = slab<bf16, 16 * warpgroups * pieces, 64, warpgroups>;
  struct args {
    layout<bf16> x, y;  // [W, M, N]
    mailbox<part> box;

    PK_FN int across() const { return x.tiles_across<part>(); }
    PK_FN int tasks() const { return x.tiles_down<part>() * across(); }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    int cols = h.dim("x", 2);
    h.input("x", g.x, short_rows(cols, h.world()));
    h.output("y", g.y, short_rows(cols, h.world()));
    h.require(h.dim("x", 0) == h.world(), "x must be [W, M, N]");
    h.mailbox("box", g.box, g.tasks());
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      int row = t / g.across(), col = t % g.across();
      auto receiver = [&](int i) { return (self.rank() + 1 + i) % self.world(); };  // the own chunk last
      load_each<part, 4>(
          self, self.world(), [&](int i) { return place{g.x, coord{receiver(i), row, col}}; },
          [&](int i, const part& v) {
            if (receiver(i) == self.rank()) store(self, g.y, {self.rank(), row, col}, v);
            else post(self, g.box, receiver(i), t, v);
          });
      take_each(self, g.box, t, [&](int source, const part& v) { store(self, g.y, {source, row, col}, v); });
    }
  }
};
PK_KERNEL(alltoall_ll)
