// Reduce-scatter: every rank pushes its tiles into their owners' slots; the owner adds a tile as soon as all have
// arrived, in rank order, in fp32. There is no barrier over the ranks, and pushes come closer to the rate of the
// links than pulls: for medium and large tensors.
#include <pk/pk.h>
using namespace pk;

constexpr int rows = knob("rows", 64, {64, 128});
constexpr int cols = knob("cols", 128, {64, 128, 256});
constexpr int depth = knob("depth", 6, {2, 4, 6});
constexpr int warpgroups = knob("warpgroups", 2, {1, 2, 4});  // that add, in every SM

struct reducescatter {
  using block_tile = tile<bf16, rows, cols>;
  struct args {
    layout<bf16> x, y;           // x [W, M, N], y [M, N]
    parallel_layout<bf16> part;  // [W, M, N]: plane s is what rank s pushed
    signals ready;               // one counter per tile of y, one signal from every peer

    PK_FN int across() const { return y.tiles_across<block_tile>(); }
    PK_FN int tiles() const { return y.tiles_down<block_tile>() * across(); }
    PK_FN int pushes() const { return (x.planes - 1) * tiles(); }
    // Push t of `rank`: to which owner, and which tile. Owners by turns, other ones in other blocks.
    PK_FN coord push(int t, int rank) const {
      int peers = x.planes - 1, tile = t / peers;
      return {(rank + 1 + (t + tile) % peers) % x.planes, tile / across(), tile % across()};
    }
  };
  struct shared {
    copy_ring<block_tile, depth> pipe;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x, h.world());
    h.output("y", g.y);
    h.require(g.x.rows == g.y.rows && g.x.cols == g.y.cols, "x must be [W * M, N]");
    h.scratch("part", g.part, h.world(), g.y.rows, g.y.cols);
    h.signals("ready", g.ready, g.tiles(), most(h.world() - 1, 1));
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.pushes())) {
      pipe.load(pipe.acquire(), g.x, g.push(t, self.rank()));
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.pushes())) {
      coord at = g.push(t, self.rank());
      store_async(self, g.part[at.plane], {self.rank(), at.row, at.col}, pipe.wait());
      pipe.release();
      signal(self, g.ready, at.plane, at.row * g.across() + at.col);
    }
  }

  PK_ROLE communicator(group<warpgroups> self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tiles())) {
      coord at = {self.rank(), t / g.across(), t % g.across()};
      wait(self, g.ready, t, self.world() - 1);
      reduce<block_tile, 4>(
          self, self.world(),
          [&](int r) {
            return r == self.rank() ? place{g.x, at} : place{g.part[self.rank()], coord{r, at.row, at.col}};
          },
          1, [&](int) { return place{g.y, coord{at.row, at.col}}; });
    }
  }
};
PK_KERNEL(reducescatter)
