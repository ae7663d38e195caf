// Gather to rank 0: every rank pushes its tiles into the root's output. The other ranks fill their own outputs with
// copies of their x, from the same tile in shared memory.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 3, 4, 6});

struct gather {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;           // [M, N]
    parallel_layout<bf16> y;  // [W, M, N]

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return x.tiles_down<block_tile>() * across(); }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.require(g.y.planes == h.world(), "y must be [W, M, N]");
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks())) {
      pipe.load(pipe.acquire(), g.x, {t / g.across(), t % g.across()});
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      block_tile& x = pipe.wait();
      int row = t / g.across(), col = t % g.across();
      store_async(self, g.y[0], {self.rank(), row, col}, x);
      for (int r = 0; r < (self.rank() == 0 ? 0 : self.world()); ++r)
        store_async(self, g.y[self.rank()], {r, row, col}, x);
      pipe.release();
    }
  }
};
PK_KERNEL(gather)
