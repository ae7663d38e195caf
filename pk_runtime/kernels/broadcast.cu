// Broadcast from rank 0. The root sends every tile once, to the other ranks by turns; who gets one forwards it to
// the rest as soon as it is there. So no rank sends more than the bytes of x: for medium and large tensors.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 3, 4, 6});

struct broadcast {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;           // [M, N], read on rank 0
    parallel_layout<bf16> y;  // [M, N]
    signals there;            // one counter per tile, one signal from the root to the rank that forwards it

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tiles() const { return x.tiles_down<block_tile>() * across(); }
    PK_FN coord at(int tile) const { return {tile / across(), tile % across()}; }
    // Tiles that rank 0 sends, or that another rank forwards: with two ranks, none.
    PK_FN int tasks(int rank, int world) const {
      if (rank == 0) return tiles();
      return world == 2 ? 0 : ceil_div(tiles() - (rank - 1), world - 1);
    }
    PK_FN int tile_of(int t, int rank, int world) const { return rank == 0 ? t : t * (world - 1) + rank - 1; }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.require(h.world() > 1, "a broadcast needs two ranks");
    h.signals("there", g.there, g.tiles(), 1);
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks(self.rank(), self.world()))) {
      int tile = g.tile_of(t, self.rank(), self.world());
      if (self.rank() > 0) wait(self, g.there, tile, 1);
      pipe.load(pipe.acquire(), self.rank() == 0 ? g.x : g.y[self.rank()], g.at(tile));
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    int others = self.world() - 1;
    for (int t : self.tasks(g.tasks(self.rank(), self.world()))) {
      int tile = g.tile_of(t, self.rank(), self.world());
      block_tile& x = pipe.wait();
      if (self.rank() == 0) {
        store_async(self, g.y[1 + t % others], g.at(tile), x);
        store_async(self, g.y[0], g.at(tile), x);
      } else {
        for (int i = 0; i < others - 1; ++i)
          store_async(self, g.y[1 + (self.rank() + (t + i) % (others - 1)) % others], g.at(tile), x);
      }
      pipe.release();
      if (self.rank() == 0) signal(self, g.there, 1 + t % others, tile);
    }
  }
};
PK_KERNEL(broadcast)
