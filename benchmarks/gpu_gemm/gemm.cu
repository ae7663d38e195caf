// C = A * B on every rank by itself, without communication: the main loop that the fused kernels share, to be
// timed beside cuBLAS.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 4, {2, 3, 4, 5, 6});
constexpr int block_n = knob("block_n", 256, {128, 192, 256});  // columns of an output tile
constexpr int super_m = knob("super_m", 8, {1, 2, 4, 8, 16});

struct gemm_alone {
  using mm = gemm<128, block_n, 64, stages>;
  using chunk = tile<bf16, 128, block_n % 128 == 0 ? 128 : 64>;
  static constexpr int per_tile = block_n / chunk::cols;

  struct args {
    layout<bf16> a, b, c;  // a [M, K], b [K, N], c [M, N]

    PK_FN int rows() const { return c.tiles_down<chunk>(); }
    PK_FN int cols() const { return c.tiles_across<tile<bf16, 128, block_n>>(); }
    PK_FN tile_place place(int t) const { return grouped(t, rows(), cols(), super_m); }
  };
  struct shared {
    mm::inputs in;
    store_ring<chunk, mm::room_for<chunk>(2)> out;
  };

  static void setup(host& h, args& g) {
    h.input("a", g.a);
    h.input("b", g.b);
    h.output("c", g.c);
    h.require(g.a.cols == g.b.rows, "a and b must have the same K");
    h.require(g.c.rows == g.a.rows && g.c.cols == g.b.cols, "c must be [M, N]");
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
        if (col < g.c.tiles_across<chunk>()) store_async(self, g.c, {p.row, col}, x);
        out.release();
      }
    }
  }
};
PK_KERNEL(gemm_alone)
