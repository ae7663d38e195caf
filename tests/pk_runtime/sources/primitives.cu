// Every primitive, in one group of one communicator SM per rank:
// sum = all_reduce(x), own = reduce(x), added = the sum of what every rank adds into it, moved = x of the next rank.
#include <pk/pk.h>
using namespace pk;

struct primitives {
  static constexpr int comm_sms = 1;
  using T = tile<bf16, 64, 128>;
  struct args {
    parallel_layout<bf16> x, sum, part;
    layout<bf16> own, added, moved;
    signals told;
    barrier_state phase;
    PK_FN int down() const { return x.tiles_down<T>(); }
  };
  struct comm_shared {
    reducer<T, 3, 1> sums;
    mover<T, 3, 1> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("sum", g.sum);
    h.output("own", g.own);
    h.output("added", g.added);
    h.output("moved", g.moved);
    h.scratch("part", g.part, 1, g.x.rows, g.x.cols);
    h.signals("told", g.told, 1, h.world());
    h.barrier("phase", g.phase);
    h.require(g.x.cols <= 128, "one tile across");
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    auto sums = s.sums.open(self);
    auto pipe = s.pipe.open(self);
    int next = (self.rank() + 1) % self.world();
    auto from_x = [&](auto& loads, T& t, int i) { loads.load(t, g.x[self.rank()], {i, 0}); };

    if (self.rank() == 0)  // the sum begins as what rank 0 has
      for (int r = 0; r < self.world(); ++r)
        pipe.move(g.down(), from_x, [&](T& t, int i) { store_async(self, g.part[r], {i, 0}, t); });
    barrier(self, g.phase);
    if (self.rank() > 0)
      for (int r = 0; r < self.world(); ++r)
        pipe.move(g.down(), from_x, [&](T& t, int i) { store_add_async(self, g.part[r], {i, 0}, t); });
    signal_all(self, g.told, 0);
    wait(self, g.told, 0, self.world());
    pipe.move(
        g.down(), [&](auto& loads, T& t, int i) { loads.load(t, g.part[self.rank()], {i, 0}); },
        [&](T& t, int i) { store_async(self, g.added, {i, 0}, t); });

    for (int i = 0; i < g.down(); ++i) {
      reduce(sums, g.own, {i, 0}, g.x);
      if (i % self.world() == self.rank()) all_reduce(sums, g.sum, {i, 0}, g.x);
    }
    drain_reads(self);
    pipe.move(
        g.down(), [&](auto& loads, T& t, int i) { loads.load(t, g.x[next], {i, 0}); },
        [&](T& t, int i) { store_async(self, g.moved, {i, 0}, t); });
  }
};
PK_KERNEL(primitives)
