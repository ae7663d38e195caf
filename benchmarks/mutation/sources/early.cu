// y of the next rank gets the first columns from a role that ends early; the rest comes from roles that take longer.
#include <pk/pk.h>
using namespace pk;

struct early {
  using part = tile<bf16, 64, 64>;
  using strip = slab<bf16, 16, 64, 0>;
  struct args {
    layout<bf16> x;
    parallel_layout<bf16> y;
  };
  struct shared {
    copy_ring<part, 1> pipe;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.x.tiles_across<part>() - 1)) {
      pipe.load(pipe.acquire(), g.x, {0, t + 1});
      pipe.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.x.tiles_across<part>() - 1)) {
      store_async(self, g.y[self.rank()], {0, t + 1}, pipe.wait());
      pipe.release();
    }
  }

  PK_ROLE communicator(group<0> self, const args& g, comm_shared&) {
    strip v;
    for (int k : self.tasks(4)) {
      load(self, v, g.x, {k, 0});
      store(self, g.y[(self.rank() + 1) % self.world()], {k, 0}, v);
    }
  }
};
PK_KERNEL(early)
