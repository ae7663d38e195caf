// Reduce of small tensors to rank 0: every rank posts its x to the root with the arrival in the data; the root adds in
// rank order, in fp32. One crossing, no barrier, 2 (W - 1) times the bytes into the root.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 1, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2, 4});  // of 16 bytes a thread

struct reduce_ll {
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
      load(self, v, g.x, at);
      if (self.rank() == 0) {
        slab_sum<bf16, part::rows, part::cols, warpgroups> sum;
        take_sum(self, sum, g.box, t, v);
        convert(self, v, sum);
      } else {
        post(self, g.box, 0, t, v);  // the other ranks return their own x
      }
      store(self, g.y, at, v);
    }
  }
};
PK_KERNEL(reduce_ll)
