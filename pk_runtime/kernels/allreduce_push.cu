// All-reduce of large tensors: tile t belongs to rank t % W. Every rank pushes its tiles into their owners' slots;
// the owner adds a tile as soon as all have arrived, in rank order, in fp32, and pushes the sum to every rank. As
// two-shot, but nothing is pulled: pushes alone come closer to the rate of the links.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 4, 6});
constexpr int warpgroups = knob("warpgroups", 2, {1, 2, 4});  // that add, in every SM

struct allreduce_push {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x;                 // [M, N]
    parallel_layout<bf16> y, part;  // part [W, M, N]: plane s is what rank s pushed; only owned tiles are used
    signals ready;                  // one counter per tile, one signal from every peer

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tiles() const { return x.tiles_down<block_tile>() * across(); }
    PK_FN coord at(int tile) const { return {tile / across(), tile % across()}; }
    // The tile of a rank's push t, for owners by turns, the next rank first.
    PK_FN int pushed(int t, int rank, int world) const {
      return t / (world - 1) * world + (rank + 1 + t % (world - 1)) % world;
    }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.scratch("part", g.part, h.world(), g.x.rows, g.x.cols);
    h.signals("ready", g.ready, g.tiles(), most(h.world() - 1, 1));
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(ceil_div(g.tiles(), self.world()) * (self.world() - 1))) {
      int tile = g.pushed(t, self.rank(), self.world());
      if (tile >= g.tiles()) continue;
      pipe.load(pipe.acquire(), g.x, g.at(tile));
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(ceil_div(g.tiles(), self.world()) * (self.world() - 1))) {
      int tile = g.pushed(t, self.rank(), self.world());
      if (tile >= g.tiles()) continue;
      coord at = g.at(tile);
      store_async(self, g.part[tile % self.world()], {self.rank(), at.row, at.col}, pipe.wait());
      pipe.release();
      signal(self, g.ready, tile % self.world(), tile);
    }
  }

  PK_ROLE communicator(group<warpgroups> self, const args& g, comm_shared&) {
    for (int t : self.tasks(ceil_div(g.tiles() - self.rank(), self.world()))) {
      int tile = t * self.world() + self.rank();
      coord at = g.at(tile);
      wait(self, g.ready, tile, self.world() - 1);
      reduce<block_tile, 4>(
          self, self.world(),
          [&](int r) {
            return r == self.rank() ? place{g.x, at} : place{g.part[self.rank()], coord{r, at.row, at.col}};
          },
          self.world(), [&](int i) { return place{g.y[(self.rank() + 1 + i) % self.world()], at}; });
    }
  }
};
PK_KERNEL(allreduce_push)
