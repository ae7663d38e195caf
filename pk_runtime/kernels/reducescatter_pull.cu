// Reduce-scatter through registers: every rank pulls its rows from every rank and adds in rank order, in fp32.
// Nothing is staged, but pulls do not fill the links: for medium tensors.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 4, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2});  // of 16 bytes a thread

struct reducescatter_pull {
  using team = group<warpgroups>;
  using part = slab<bf16, 16 * warpgroups * pieces, 64, warpgroups>;
  struct args {
    parallel_layout<bf16> x;  // [W, M, N]
    layout<bf16> y;           // [M, N]

    PK_FN int across() const { return y.tiles_across<part>(); }
    PK_FN int tasks() const { return y.tiles_down<part>() * across(); }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x, h.world());
    h.output("y", g.y);
    h.require(g.x.rows == g.y.rows && g.x.cols == g.y.cols, "x must be [W * M, N]");
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      int row = t / g.across(), col = t % g.across();
      slab_sum<bf16, part::rows, part::cols, warpgroups> sum;
      part v;
      add_up<4>(self, sum, self.world(), [&](int r) { return place{g.x[r], coord{self.rank(), row, col}}; });
      convert(self, v, sum);
      store(self, g.y, {row, col}, v);
    }
  }
};
PK_KERNEL(reducescatter_pull)
