// One-shot all-reduce: every rank pulls every tile of x from every rank and adds in rank order, in fp32.
// Fewest crossings, W - 1 times the bytes of x into each rank: for small x.
#include <pk/pk.h>
using namespace pk;

constexpr int cols = knob("cols", 64, {64, 128, 256});  // width of a tile
constexpr int depth = knob("depth", 8, {2, 4, 6, 8, 12});

struct allreduce_one_shot {
  using block_tile = tile<bf16, 128, cols>;
  struct args {
    parallel_layout<bf16> x;  // [M, N]
    layout<bf16> y;           // [M, N]

    PK_FN int across() const { return y.tiles_across<block_tile>(); }
    PK_FN int tasks() const { return y.tiles_down<block_tile>() * across(); }
  };
  struct shared {
    load_ring<block_tile, depth * 64 / cols + 1> in;
    store_ring<block_tile, 1> out;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks()))
      for (int r = 0; r < self.world(); ++r) {
        block_tile& x = in.acquire();
        in.load(x, g.x[r], {t / g.across(), t % g.across()});
        in.commit();
      }
  }

  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    reg_tile<float, 128, cols> sum;
    for ([[maybe_unused]] int t : self.tasks(g.tasks())) {
      zero(sum);
      for (int r = 0; r < self.world(); ++r) {
        accumulate(self, sum, in.wait());
        in.release();
      }
      store(self, out.acquire(), sum);
      out.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      store_async(self, g.y, {t / g.across(), t % g.across()}, out.wait());
      out.release();
    }
  }
};
PK_KERNEL(allreduce_one_shot)
