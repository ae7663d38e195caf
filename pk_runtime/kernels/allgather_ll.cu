// All-gather of small shards: every rank posts its x to every peer with the arrival in the data. One crossing, no
// barrier, twice the bytes.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 1, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2, 4});  // of 16 bytes a thread

struct allgather_ll {
  using team = group<warpgroups>;
  using part = slab<bf16, 16 * warpgroups * pieces, 64, warpgroups>;
  struct args {
    layout<bf16> x, y;  // x [M, N], y [W, M, N]
    mailbox<part> box;

    PK_FN int across() const { return x.tiles_across<part>(); }
    PK_FN int tasks() const { return x.tiles_down<part>() * across(); }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    int cols = h.dim("x", 1);
    h.input("x", g.x, short_rows(cols));
    h.output("y", g.y, short_rows(cols, h.world()));
    h.mailbox("box", g.box, g.tasks());
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      int row = t / g.across(), col = t % g.across();
      part v;
      load(self, v, g.x, {row, col});
      for (int i = 1; i < self.world(); ++i) post(self, g.box, (self.rank() + i) % self.world(), t, v);
      store(self, g.y, {self.rank(), row, col}, v);
      for (int i = 1; i < self.world(); ++i) {
        int source = (self.rank() + i) % self.world();
        take(self, v, g.box, source, t);
        store(self, g.y, {source, row, col}, v);
      }
    }
  }
};
PK_KERNEL(allgather_ll)
