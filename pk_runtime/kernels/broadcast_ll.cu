// Broadcast of small tensors: rank 0 posts its x to every rank with the arrival in the data. One crossing, no
// barrier, 2 (W - 1) times the bytes out of the root.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 1, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2, 4});  // of 16 bytes a thread

struct broadcast_ll {
  using team = group<warpgroups>;
  using part = slab<bf16, 16 * warpgroups * pieces, 64, warpgroups>;
  struct args {
    layout<bf16> x, y;  // [M, N]
    mailbox<part> box;

    PK_FN int across() const { return y.tiles_across<part>(); }
    PK_FN int tasks() const { return y.tiles_down<part>() * across(); }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    view rows = short_rows(h.dim("x", 1));
    h.input("x", g.x, rows);
    h.output("y", g.y, rows);
    h.mailbox("box", g.box, g.tasks());
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      coord at = {t / g.across(), t % g.across()};
      part v;
      if (self.rank() == 0) {
        load(self, v, g.x, at);
        for (int peer = 1; peer < self.world(); ++peer) post(self, g.box, peer, t, v);
      } else {
        take(self, v, g.box, 0, t);
      }
      store(self, g.y, at, v);
    }
  }
};
PK_KERNEL(broadcast_ll)
