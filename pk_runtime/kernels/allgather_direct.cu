// All-gather through registers: every rank stores its tiles to all ranks, without shared memory. Less start-up
// than bulk copies: for medium shards.
#include <pk/pk.h>
using namespace pk;

constexpr int warpgroups = knob("warpgroups", 4, {1, 2, 4});
constexpr int cols = knob("cols", 64, {64, 128});

struct allgather_direct {
  using team = group<warpgroups>;
  using block_tile = tile<bf16, 64, cols>;
  struct args {
    layout<bf16> x;           // [M, N]
    parallel_layout<bf16> y;  // [W, M, N]

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return x.tiles_down<block_tile>() * across(); }
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      int row = t / g.across(), col = t % g.across();
      copy<block_tile>(self, place{g.x, coord{row, col}}, self.world(), [&](int i) {
        return place{g.y[(self.rank() + 1 + t + i) % self.world()], coord{self.rank(), row, col}};
      });
    }
  }
};
PK_KERNEL(allgather_direct)
