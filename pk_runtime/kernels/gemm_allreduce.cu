// GEMM + all-reduce: C = sum_r A_r * B_r on every rank; K is the local contraction length.
//
// Tile t belongs to rank t % W. Partial tiles are pushed into the owner's slot for this source rank; the owner's
// communicators add the W partials in rank order, in fp32, and push the sum to every rank. With comm_sms = 0
// there is a communicator in every SM, beside the GEMM.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 3, {2, 3, 4, 5, 6});
constexpr int block_n = knob("block_n", 256, {128, 192, 256});  // columns of an output tile
constexpr int super_m = knob("super_m", 8, {1, 2, 4, 8, 16});

struct gemm_allreduce {
  static constexpr int comm_sms = knob("comm_sms", 0, {0, 16, 24, 32, 40});
  using mm = gemm<128, block_n, 64, stages>;
  using chunk = tile<bf16, 128, block_n % 128 == 0 ? 128 : 64>;  // what moves at a time
  static constexpr int per_tile = block_n / chunk::cols;
  using team = group<comm_sms == 0 ? 0 : 2>;

  struct args {
    layout<bf16> a, b;           // a [M, K], b [K, N]
    parallel_layout<bf16> c;     // [M, N], written by the owner of each chunk
    parallel_layout<bf16> part;  // [W, M, N]: plane s is what rank s computed; only owned chunks are used
    signals ready;               // one counter per chunk, one signal from every rank

    PK_FN int rows() const { return a.tiles_down<chunk>(); }
    PK_FN int cols() const { return ceil_div(c.cols, block_n); }
    PK_FN int chunks() const { return c.tiles_across<chunk>(); }
    // Every rank walks the same order, so that the partials of a tile arrive close together.
    PK_FN tile_place place(int t) const { return grouped(t, rows(), cols(), super_m); }
  };
  struct shared {
    mm::inputs in;
    store_ring<chunk, mm::room_for<chunk>(2)> out;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("a", g.a);
    h.input("b", g.b);
    h.output("c", g.c);
    h.require(g.a.cols == g.b.rows, "a and b must have the same K");
    h.require(g.c.rows == g.a.rows && g.c.cols == g.b.cols, "c must be [M, N]");
    h.scratch("part", g.part, h.world(), g.c.rows, g.c.cols);
    h.signals("ready", g.ready, g.rows() * g.chunks(), h.world());
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.rows() * g.cols())) {
      tile_place p = g.place(t);
      mm::load(in, g.a, 0, p.row, g.b, p.col);
    }
  }

  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    mm::accumulator c;
    for ([[maybe_unused]] int t : self.tasks(g.rows() * g.cols())) {
      mm::multiply(self, c, in, mm::steps(g.a));
      mm::emit(self, c, out);
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.rows() * g.cols())) {
      tile_place p = g.place(t);
      for (int col = per_tile * p.col; col < per_tile * (p.col + 1); ++col) {
        chunk& x = out.wait();
        int owner = t % self.world();
        if (col < g.chunks()) store_async(self, g.part[owner], {self.rank(), p.row, col}, x);
        out.release();
        if (col < g.chunks()) signal(self, g.ready, owner, p.row * g.chunks() + col);
      }
    }
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    int owned = ceil_div(g.rows() * g.cols() - self.rank(), self.world());
    for (int t : self.tasks(owned * per_tile)) {
      tile_place p = g.place(t / per_tile * self.world() + self.rank());
      int col = p.col * per_tile + t % per_tile;
      if (col >= g.chunks()) continue;
      wait(self, g.ready, p.row * g.chunks() + col, self.world());
      reduce<chunk>(
          self, self.world(), [&](int r) { return place{g.part[self.rank()], coord{r, p.row, col}}; },
          self.world(), [&](int i) { return place{g.c[(self.rank() + 1 + i) % self.world()], coord{p.row, col}}; });
    }
  }
};
PK_KERNEL(gemm_allreduce)
