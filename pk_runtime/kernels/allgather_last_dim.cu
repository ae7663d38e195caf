// All-gather along the last dimension: columns [r * N, (r + 1) * N) of y are x of rank r. Every rank pushes its
// tiles into its columns of every rank's y, starting with another peer for every task; nothing is reshaped.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 3, 4, 6});

struct allgather_last_dim {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;           // [M, N]
    parallel_layout<bf16> y;  // [M, N]: this rank's columns of every rank's y

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return x.tiles_down<block_tile>() * across(); }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y, view{.parts = h.world(), .part = h.rank()});
    h.require(g.y.rows == g.x.rows && g.y.cols == g.x.cols, "y must be [M, W * N]");
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
      for (int i = 0; i < self.world(); ++i)
        store_async(self, g.y[(self.rank() + t + i) % self.world()], {t / g.across(), t % g.across()}, x);
      pipe.release();
    }
  }
};
PK_KERNEL(allgather_last_dim)
