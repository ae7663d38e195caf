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
      part v;
      for (int i = 0; i < self.world(); ++i) {  // the own chunk last
        int peer = (self.rank() + 1 + i) % self.world();
        load(self, v, g.x, {peer, row, col});
        if (peer == self.rank()) store(self, g.y, {peer, row, col}, v);
        else post(self, g.box, peer, t, v);
      }
      for (int i = 1; i < self.world(); ++i) {
        int source = (self.rank() + i) % self.world();
        take(self, v, g.box, source, t);
        store(self, g.y, {source, row, col}, v);
      }
    }
  }
};
PK_KERNEL(alltoall_ll)
