// Two-shot all-reduce: part t belongs to rank t % W, which pulls it from every rank, adds in rank order, in fp32,
// and pushes the sum to every rank. 2 (W - 1) / W times the bytes of x per rank and two crossings: for medium x.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 4, {1, 2, 4});
constexpr int pieces = knob("pieces", 1, {1, 2});  // of 16 bytes a thread

struct allreduce_two_shot {
  using team = group<warpgroups>;
  using part = slab<bf16, 16 * warpgroups * pieces, 64, warpgroups>;
  struct args {
    parallel_layout<bf16> x, y;  // [M, N]

    PK_FN int across() const { return x.tiles_across<part>(); }
    PK_FN int owned(int rank, int world) const {
      return ceil_div(x.tiles_down<part>() * across() - rank, world);
    }
    PK_FN coord at(int t) const { return {t / across(), t % across()}; }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    view rows = short_rows(h.dim("x", 1));
    h.input("x", g.x, rows);
    h.output("y", g.y, rows);
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.owned(self.rank(), self.world()))) {
      coord at = g.at(t * self.world() + self.rank());
      slab_sum<bf16, part::rows, part::cols, warpgroups> sum;
      part v;
      add_up<4>(self, sum, self.world(), [&](int r) { return place{g.x[r], at}; });
      convert(self, v, sum);
      for (int i = 1; i <= self.world(); ++i) store(self, g.y[(self.rank() + i) % self.world()], at, v);
    }
  }
};
PK_KERNEL(allreduce_two_shot)
