// All-to-all: y[s] on rank r is x[r] on rank s. Every rank pushes its chunks straight into the peers' outputs,
// each task to another peer than its neighbours' tasks, so that no receiver is hit by all senders at once.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 3, 4, 6});

struct alltoall {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;           // [W, M, N]
    parallel_layout<bf16> y;  // [W, M, N]

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return x.planes * x.tiles_down<block_tile>() * across(); }
    // Task t goes to a peer that changes with every task and starts at the next rank.
    PK_FN coord place(int t, int rank) const {
      int tile = t / x.planes;
      return {(rank + 1 + t) % x.planes, tile / across(), tile % across()};
    }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.require(g.x.planes == h.world(), "x must be [W, M, N]");
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks())) {
      block_tile& x = pipe.acquire();
      pipe.load(x, g.x, g.place(t, self.rank()));
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      store_async(self, g.y[at.plane], {self.rank(), at.row, at.col}, pipe.wait());
      pipe.release();
    }
  }
};
PK_KERNEL(alltoall)
