// All-reduce of small tensors: every rank posts its x to every peer with the arrival in the data, and adds what it
// takes in rank order, in fp32. One crossing, no barrier, 2 (W - 1) times the bytes of x out of each rank.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 1, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2, 4});  // of 16 bytes a thread

struct allreduce_ll {
  using team = group<warpgroups>;
  using part = slab<bf16, 16 * warpgroups * pieces, 64, warpgroups>;
  struct args {
    layout<bf16> x, y;  // [M, N]
    mailbox<part> box;

    PK_FN int across() const { return x.tiles_across<part>(); }
    PK_FN int tasks() const { return x.tiles_down<part>() * across(); }
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
      slab_sum<bf16, part::rows, part::cols, warpgroups> sum;
      load(self, v, g.x, at);
      for (int i = 1; i < self.world(); ++i) post(self, g.box, (self.rank() + i) % self.world(), t, v);
      take_sum(self, sum, g.box, t, v);
      convert(self, v, sum);
      store(self, g.y, at, v);
    }
  }
};
PK_KERNEL(allreduce_ll)
