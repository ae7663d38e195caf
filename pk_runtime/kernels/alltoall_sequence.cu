// All-to-all of a 4-D tensor, from some heads of all positions to all heads of some positions: the way back of
// alltoall_heads. The positions of rank p are rows of x, which go straight to this rank's columns of p's y. Nothing
// is reshaped. Each task goes to another peer than its neighbours' tasks, so that no receiver is hit by all
// senders at once.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 3, 4, 6});

struct alltoall_sequence {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;           // [B * W, T/W, h * d]: plane b * W + p has the positions of rank p
    parallel_layout<bf16> y;  // [B, T/W, h * d]: this rank's heads of every rank's y

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return x.planes * x.tiles_down<block_tile>() * across(); }
    PK_FN int peer(int t, int rank, int world) const { return (rank + 1 + t + t / world) % world; }
    PK_FN coord to(int t, int world) const {
      int tile = t / world, plane = tile / across() / x.tiles_down<block_tile>();
      return {plane, tile / across() % x.tiles_down<block_tile>(), tile % across()};
    }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };

  static void setup(host& h, args& g) {
    int batches = h.dim("x", 0), columns = h.dim("x", 2) * h.dim("x", 3);
    h.input("x", g.x, view{.planes = batches * h.world(), .cols = columns});
    h.output("y", g.y,
             view{.planes = batches, .cols = columns * h.world(), .parts = h.world(), .part = h.rank()});
    h.require(g.y.rows == g.x.rows, "x must be [B, T, h, d] and y [B, T / W, W * h, d]");
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.to(t, self.world());
      int peer = g.peer(t, self.rank(), self.world());
      pipe.load(pipe.acquire(), g.x, {at.plane * self.world() + peer, at.row, at.col});
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      store_async(self, g.y[g.peer(t, self.rank(), self.world())], g.to(t, self.world()), pipe.wait());
      pipe.release();
    }
  }
};
PK_KERNEL(alltoall_sequence)
