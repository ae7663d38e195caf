// All-to-all through registers: every rank stores its tiles into the peers' outputs, without shared memory. Less
// start-up than bulk copies: for medium chunks. Each task goes to another peer than its neighbours' tasks.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 4, {1, 2, 4});
constexpr int cols = knob("cols", 64, {64, 128});

struct alltoall_direct {
  using team = group<warpgroups>;
  using block_tile = tile<bf16, 64, cols>;
  struct args {
    layout<bf16> x;           // [W, M, N]
    parallel_layout<bf16> y;  // [W, M, N]

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return x.planes * x.tiles_down<block_tile>() * across(); }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.require(g.x.planes == h.world(), "x must be [W, M, N]");
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      int peer = (self.rank() + 1 + t) % self.world(), tile = t / self.world();
      int row = tile / g.across(), col = tile % g.across();
      copy<block_tile>(self, place{g.x, coord{peer, row, col}}, 1,
                       [&](int) { return place{g.y[peer], coord{self.rank(), row, col}}; });
    }
  }
};
PK_KERNEL(alltoall_direct)
