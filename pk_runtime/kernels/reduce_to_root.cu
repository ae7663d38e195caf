// Reduce to rank 0. Tile t belongs to one of the other ranks: every rank pushes it there, the owner adds in rank
// order, in fp32, and sends the sum to the root. So no rank sends or receives more than the bytes of x, where
// a root that pulls everything would receive W - 1 times as much.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 4, 6});
constexpr int warpgroups = knob("warpgroups", 2, {1, 2, 4});  // that add, in every SM

struct reduce_to_root {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;                 // [M, N]
    parallel_layout<bf16> y, part;  // y [M, N]; part [W, M, N]: plane s is what rank s pushed, owned tiles only
    signals ready;                  // one counter per tile, one signal from every peer of its owner

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tiles() const { return x.tiles_down<block_tile>() * across(); }
    PK_FN coord at(int tile) const { return {tile / across(), tile % across()}; }
    PK_FN int owner(int tile, int world) const { return 1 + tile % (world - 1); }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.require(h.world() > 1, "a reduce needs two ranks");
    h.scratch("part", g.part, h.world(), g.x.rows, g.x.cols);
    h.signals("ready", g.ready, g.tiles(), most(h.world() - 1, 1));
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tiles())) {
      pipe.load(pipe.acquire(), g.x, g.at(t));
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tiles())) {
      block_tile& x = pipe.wait();
      int owner = g.owner(t, self.world());
      coord at = g.at(t);
      if (self.rank() != owner) store_async(self, g.part[owner], {self.rank(), at.row, at.col}, x);
      if (self.rank() != 0) store_async(self, g.y[self.rank()], at, x);  // other ranks return their own x
      pipe.release();
      if (self.rank() != owner) signal(self, g.ready, owner, t);
    }
  }

  PK_ROLE communicator(group<warpgroups> self, const args& g, comm_shared&) {
    int owners = self.world() - 1;
    for (int t : self.tasks(self.rank() == 0 ? 0 : ceil_div(g.tiles() - (self.rank() - 1), owners))) {
      int tile = t * owners + self.rank() - 1;
      coord at = g.at(tile);
      wait(self, g.ready, tile, self.world() - 1);
      reduce<block_tile, 4>(
          self, self.world(),
          [&](int r) {
            return r == self.rank() ? place{g.x, at} : place{g.part[self.rank()], coord{r, at.row, at.col}};
          },
          1, [&](int) { return place{g.y[0], at}; });
    }
  }
};
PK_KERNEL(reduce_to_root)
