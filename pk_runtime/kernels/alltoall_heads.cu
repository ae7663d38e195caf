// All-to-all of a 4-D tensor, from all heads of some positions to some heads of all positions (Ulysses): the heads
// of rank p are a part of the columns of x, which go straight to their rows of p's y. Nothing is reshaped. Each
// task goes to another peer than its neighbours' tasks, so that no receiver is hit by all senders at once.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 3, 4, 6});

struct alltoall_heads {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    parallel_layout<bf16> x;  // this rank's [B, T, h * d], by columns: x[p] are the heads of rank p
    parallel_layout<bf16> y;  // [B * W, T, h/W * d]: plane b * W + s has the positions of rank s

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks(int world) const { return world * x.planes * x.tiles_down<block_tile>() * across(); }
    PK_FN int peer(int t, int rank, int world) const { return (rank + 1 + t + t / world) % world; }
    PK_FN coord from(int t, int world) const {
      int tile = t / world, plane = tile / across() / x.tiles_down<block_tile>();
      return {plane, tile / across() % x.tiles_down<block_tile>(), tile % across()};
    }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };

  static void setup(host& h, args& g) {
    int batches = h.dim("x", 0), columns = h.dim("x", 2) * h.dim("x", 3);
    h.input_parts("x", g.x, view{.planes = batches, .cols = columns, .parts = h.world()});
    h.output("y", g.y, view{.planes = batches * h.world(), .cols = columns / h.world()});
    h.require(g.y.rows == g.x.rows, "x must be [B, T, h, d] and y [B, W * T, h / W, d]");
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks(self.world()))) {
      pipe.load(pipe.acquire(), g.x[g.peer(t, self.rank(), self.world())], g.from(t, self.world()));
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks(self.world()))) {
      coord at = g.from(t, self.world());
      store_async(self, g.y[g.peer(t, self.rank(), self.world())],
                  {at.plane * self.world() + self.rank(), at.row, at.col}, pipe.wait());
      pipe.release();
    }
  }
};
PK_KERNEL(alltoall_heads)
