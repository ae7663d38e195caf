// GEMM + reduce-scatter for few rows, as in decoding, where reading B is all the work: every rank holds a K-slice of A
// and B; rank r owns rows r of C = sum_s A_s * B_s.
//
// An output tile has rows of several owners, so that B is read once, and its K steps are split over blocks until all
// SMs read. Partial sums stay with the rank that computed them; when the tiles over 512 columns are there, owners pull
// their rows, split by split and rank by rank, and add them in that order, in fp32.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 6, {4, 5, 6, 8});
constexpr int block_n = knob("block_n", 128, {64, 128, 256});  // columns of an output tile
constexpr int splits = knob("splits", 2, {1, 2, 4});           // of the K steps of a tile

struct gemm_reducescatter_few_rows {
  using mm = gemm<64, block_n, 64, stages>;
  using out_tile = tile<bf16, 64, block_n>;
  using strip = slab<bf16, 1, 512, 0>;  // what an owner adds at a time
  static constexpr int per_strip = strip::cols / block_n;

  struct task { int row, col, split; };
  struct args {
    layout<bf16> a, b, c;        // a [M, K/W], b [K/W, N], c [M/W, N]
    parallel_layout<bf16> part;  // [splits, M, N]: what this rank computed
    signals ready;               // one counter per row of tiles and strip of columns

    PK_FN int rows() const { return a.tiles_down<out_tile>(); }
    PK_FN int strips() const { return c.tiles_across<strip>(); }
    PK_FN int cols() const { return strips() * per_strip; }  // the last may lie behind the edge
    PK_FN int parts() const { return least(splits, mm::steps(a)); }
    PK_FN int tasks() const { return rows() * cols() * parts(); }
    PK_FN task at(int t) const { return {t / parts() / cols(), t / parts() % cols(), t % parts()}; }
    PK_FN bool inside(task k) const { return k.col < b.tiles_across<out_tile>(); }
    PK_FN int first_step(int split) const { return split * mm::steps(a) / parts(); }
  };
  struct shared {
    mm::inputs in;
    store_ring<out_tile, 1, mm::warpgroups> out;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("a", g.a);
    h.input("b", g.b);
    h.output("c", g.c);
    h.require(g.a.cols == g.b.rows, "a and b must have the same local K");
    h.require(g.c.cols == g.b.cols && g.c.rows * h.world() == g.a.rows, "c must be [M/W, N]");
    h.scratch("part", g.part, g.parts(), g.a.rows, g.c.cols);
    h.signals("ready", g.ready, g.rows() * g.strips(), h.world() * g.parts() * per_strip);
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {
      task k = g.at(t);
      if (!g.inside(k)) continue;
      for (int step = g.first_step(k.split); step < g.first_step(k.split + 1); ++step)
        mm::load_step(in, g.a, {k.row, step}, g.b, {step, k.col});
    }
  }

  PK_ROLE consumer(mm::self_group self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    mm::accumulator c;
    for (int t : self.tasks(g.tasks())) {
      task k = g.at(t);
      if (!g.inside(k)) continue;
      mm::multiply(self, c, in, g.first_step(k.split + 1) - g.first_step(k.split));
      mm::emit(self, c, out);
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      task k = g.at(t);
      if (g.inside(k)) {
        store_async(self, g.part[self.rank()], {k.split, k.row, k.col}, out.wait());
        out.release();
      }
      signal_all(self, g.ready, k.row * g.strips() + k.col / per_strip);
    }
  }

  PK_ROLE communicator(group<0> self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.c.rows * g.strips())) {
      int own = t / g.strips(), col = t % g.strips(), row = self.rank() * g.c.rows + own;
      wait(self, g.ready, row / out_tile::rows * g.strips() + col, self.world() * g.parts() * per_strip);
      slab_sum<bf16, 1, strip::cols, 0> sum;
      strip v;
      add_up<4>(self, sum, self.world() * g.parts(),
                [&](int i) { return place{g.part[i / g.parts()], coord{i % g.parts(), row, col}}; });
      convert(self, v, sum);
      store(self, g.c, {own, col}, v);
    }
  }
};
PK_KERNEL(gemm_reducescatter_few_rows)
