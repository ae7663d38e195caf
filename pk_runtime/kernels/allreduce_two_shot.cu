// Two-shot all-reduce: tile t belongs to rank t % W, which pulls it from every rank, adds in rank order, in
// fp32, and pushes the sum to every rank. 2 (W - 1) / W times the bytes of x per rank: for large x.
#include <pk/pk.h>
using namespace pk;

constexpr int cols = knob("cols", 128, {64, 128, 256});  // width of a tile
constexpr int depth = knob("depth", 8, {2, 4, 6, 8, 12});

struct allreduce_two_shot {
  using block_tile = tile<bf16, 128, cols>;
  struct args {
    parallel_layout<bf16> x, y;  // [M, N]

    PK_FN int across() const { return x.tiles_across<block_tile>(); }
    PK_FN int owned(int rank, int world) const {
      return ceil_div(x.tiles_down<block_tile>() * across() - rank, world);
    }
    PK_FN coord place(int t) const { return {t / across(), t % across()}; }
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
    for (int t : self.tasks(g.owned(self.rank(), self.world())))
      for (int r = 0; r < self.world(); ++r) {
        block_tile& x = in.acquire();
        in.load(x, g.x[r], g.place(t * self.world() + self.rank()));
        in.commit();
      }
  }

  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    reg_tile<float, 128, cols> sum;
    for ([[maybe_unused]] int t : self.tasks(g.owned(self.rank(), self.world()))) {
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
    for (int t : self.tasks(g.owned(self.rank(), self.world()))) {
      block_tile& x = out.wait();
      for (int i = 1; i <= self.world(); ++i)
        store_async(self, g.y[(self.rank() + i) % self.world()], g.place(t * self.world() + self.rank()), x);
      out.release();
    }
  }
};
PK_KERNEL(allreduce_two_shot)
