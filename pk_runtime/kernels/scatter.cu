// Scatter from rank 0: the root pushes every tile into its receiver's output, to another receiver for every task.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 3, 4, 6});

struct scatter {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;           // [W, M, N], read on rank 0
    parallel_layout<bf16> y;  // [M, N]

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks(int rank) const { return rank == 0 ? x.planes * x.tiles_down<block_tile>() * across() : 0; }
    PK_FN coord place(int t) const {
      int tile = t / x.planes;
      return {(t + tile) % x.planes, tile / across(), tile % across()};
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
    for (int t : self.tasks(g.tasks(self.rank()))) {
      pipe.load(pipe.acquire(), g.x, g.place(t));
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks(self.rank()))) {
      coord at = g.place(t);
      store_async(self, g.y[at.plane], {at.row, at.col}, pipe.wait());
      pipe.release();
    }
  }
};
PK_KERNEL(scatter)
