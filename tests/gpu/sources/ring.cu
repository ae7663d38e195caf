// y of rank r is x of the rank before it: pushed into a box, announced by a signal, copied out.
#include <pk/pk.h>
using namespace pk;

struct ring {
  using block_tile = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, y;          // [64, 64]
    parallel_layout<bf16> box;  // [1, 64, 64]: written by the rank before
    signals ready;
  };
  struct shared {
    copy_ring<block_tile, 2> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.scratch("box", g.box, 1, 64, 64);
    h.signals("ready", g.ready, 1, 1);
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for ([[maybe_unused]] int t : self.tasks(1)) {
      block_tile& x = pipe.acquire();
      pipe.load(x, g.x, {0, 0});
      pipe.commit();
      wait(self, g.ready, 0, 1);
      block_tile& y = pipe.acquire();
      pipe.load(y, g.box[self.rank()], {0, 0});
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for ([[maybe_unused]] int t : self.tasks(1)) {
      int next = (self.rank() + 1) % self.world();
      store_async(self, g.box[next], {0, 0}, pipe.wait());
      pipe.release();
      signal(self, g.ready, next, 0);
      store_async(self, g.y, {0, 0}, pipe.wait());
      pipe.release();
    }
  }
};
PK_KERNEL(ring)
