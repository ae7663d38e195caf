// Reduce-scatter of small tensors: every rank posts its parts to their owners with the arrival in the data; the
// owner adds in rank order, in fp32. One crossing, no barrier, twice the bytes.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 1, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2, 4});  // of 16 bytes a thread

struct reducescatter_ll {
  using team = group<warpgroups>;
  using part = slab<bf16, 16 * warpgroups * pieces, 64, warpgroups>;
  struct args {
    layout<bf16> x, y;  // x [W, M, N], y [M, N]
    mailbox<part> box;

    PK_FN int across() const { return y.tiles_across<part>(); }
    PK_FN int tasks() const { return y.tiles_down<part>() * across(); }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    int cols = h.dim("x", 1);
    h.input("x", g.x, short_rows(cols, h.world()));
    h.output("y", g.y, short_rows(cols));
    h.require(g.x.rows == g.y.rows && g.x.cols == g.y.cols, "x must be [W * M, N]");
    h.mailbox("box", g.box, g.tasks());
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      int row = t / g.across(), col = t % g.across();
      part own, sent[3];
      load(self, own, g.x, {self.rank(), row, col});
      for (int first = 1; first < self.world(); first += 3) {  // three loads are under way at a time
        for (int i = 0; i < 3; ++i)
          if (first + i < self.world()) load(self, sent[i], g.x, {(self.rank() + first + i) % self.world(), row, col});
        for (int i = 0; i < 3; ++i)
          if (first + i < self.world()) post(self, g.box, (self.rank() + first + i) % self.world(), t, sent[i]);
      }
      slab_sum<bf16, part::rows, part::cols, warpgroups> sum;
      take_sum(self, sum, g.box, t, own);
      convert(self, own, sum);
      store(self, g.y, {row, col}, own);
    }
  }
};
PK_KERNEL(reducescatter_ll)
