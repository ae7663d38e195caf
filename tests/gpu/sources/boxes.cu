// All-to-all by way of boxes: tiles are pushed into the peers' boxes, announced by signals, copied out.
#include <pk/pk.h>
using namespace pk;

struct boxes {
  using block_tile = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, y;          // [W, M, N]
    parallel_layout<bf16> box;  // [W, M, N]: plane s is written by rank s
    signals ready;              // one counter per tile

    PK_FN int down() const { return x.tiles_down<block_tile>(); }
    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return x.planes * down() * across(); }
    PK_FN coord place(int t) const {
      int tile = t / x.planes;
      return {t % x.planes, tile / across(), tile % across()};
    }
    PK_FN int slot(int source, coord at) const { return (source * down() + at.row) * across() + at.col; }
  };
  struct shared {
    copy_ring<block_tile, 2> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.require(g.x.planes == h.world(), "x must be [W, M, N]");
    h.scratch("box", g.box, g.x.planes, g.x.rows, g.x.cols);
    h.signals("ready", g.ready, g.tasks(), 1);
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks())) {
      block_tile& x = pipe.acquire();
      pipe.load(x, g.x, g.place(t));
      pipe.commit();
    }
    for (int t : self.tasks(g.tasks())) {
      coord from = g.place(t);
      wait(self, g.ready, g.slot(from.plane, from), 1);
      block_tile& y = pipe.acquire();
      pipe.load(y, g.box[self.rank()], from);
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      coord to = g.place(t);
      store_async(self, g.box[to.plane], {self.rank(), to.row, to.col}, pipe.wait());
      pipe.release();
      signal(self, g.ready, to.plane, g.slot(self.rank(), to));
    }
    for (int t : self.tasks(g.tasks())) {
      store_async(self, g.y, g.place(t), pipe.wait());
      pipe.release();
    }
  }
};
PK_KERNEL(boxes)
