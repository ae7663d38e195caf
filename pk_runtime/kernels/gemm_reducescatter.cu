// GEMM + reduce-scatter: every rank holds a K-slice of A and B; rank r owns rows r of C = sum_s A_s * B_s.
//
// Compute SMs push each partial tile into the owner's slot for this source rank and signal; the owner's
// communicator SMs add the W partials of a tile in rank order, in fp32, as soon as all have arrived.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 4, {2, 3, 4, 5, 6});
constexpr int block_n = knob("block_n", 256, {128, 192, 256});  // columns of an output tile
constexpr int super_m = knob("super_m", 8, {1, 2, 4, 8, 16});
constexpr int interleave = knob("interleave", 1, {0, 1});  // 1: owners by turns, 0: one owner after the other

struct gemm_reducescatter {
  static constexpr int comm_sms = knob("comm_sms", 16, {4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32});
  using mm = gemm<128, block_n, 64, stages>;
  using chunk = tile<bf16, 128, block_n % 128 == 0 ? 128 : 64>;  // what moves at a time
  static constexpr int per_tile = block_n / chunk::cols;

  struct args {
    layout<bf16> a, b, c;        // a [W, M/W, K/W], b [K/W, N], c [M/W, N]
    parallel_layout<bf16> part;  // [W, M/W, N]: plane s is what rank s computed for the owner
    signals ready;               // one counter per chunk of c, one signal from every rank

    PK_FN int rows() const { return a.tiles_down<chunk>(); }
    PK_FN int cols() const { return c.tiles_across<tile<bf16, 128, block_n>>(); }
    PK_FN int tasks() const { return a.planes * rows() * cols(); }
    // Task t of `rank`. Owners start at the next rank and end at the own one, so that links stay busy; by
    // turns, the W partials of a tile arrive close together and are added while the GEMM goes on.
    PK_FN coord place(int t, int rank) const {
      int shard = rows() * cols();
      tile_place p = grouped(interleave ? t / a.planes : t % shard, rows(), cols(), super_m);
      return {(rank + 1 + (interleave ? t : t / shard)) % a.planes, p.row, p.col};
    }
    PK_FN int slot(int row, int chunk_col) const { return row * c.tiles_across<chunk>() + chunk_col; }
  };
  struct shared {
    mm::inputs in;
    store_ring<chunk, mm::room_for<chunk>(2)> out;
  };
  struct comm_shared {
    reducer<chunk, 5> sums;
  };

  static void setup(host& h, args& g) {
    h.input("a", g.a, h.world());
    h.input("b", g.b);
    h.output("c", g.c);
    h.require(g.a.cols == g.b.rows, "a and b must have the same local K");
    h.require(g.c.cols == g.b.cols && g.c.rows == g.a.rows, "c must be [M/W, N]");
    h.scratch("part", g.part, h.world(), g.c.rows, g.c.cols);
    h.signals("ready", g.ready, g.c.tiles_down<chunk>() * g.c.tiles_across<chunk>(), h.world());
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      mm::load(in, g.a, at.plane, at.row, g.b, at.col);
    }
  }

  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    mm::accumulator c;
    for ([[maybe_unused]] int t : self.tasks(g.tasks())) {
      mm::multiply(self, c, in, mm::steps(g.a));
      mm::emit(self, c, out);
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      for (int col = per_tile * at.col; col < per_tile * (at.col + 1); ++col) {
        chunk& x = out.wait();
        bool inside = col < g.c.tiles_across<chunk>();
        if (inside) store_async(self, g.part[at.plane], {self.rank(), at.row, col}, x);
        out.release();
        if (inside) signal(self, g.ready, at.plane, g.slot(at.row, col));
      }
    }
  }

  PK_ROLE communicator(group<> self, const args& g, comm_shared& s) {
    auto sums = s.sums.open(self);
    const layout<bf16>& mine = g.part[self.rank()];
    for (int t : self.tasks(g.rows() * g.c.tiles_across<chunk>())) {
      int row = t / g.c.tiles_across<chunk>(), col = t % g.c.tiles_across<chunk>();
      wait(self, g.ready, g.slot(row, col), self.world());
      auto& total = sums.sum(self.world(), [&](auto& loads, chunk& x, int r) { loads.load(x, mine, {r, row, col}); });
      store_async(self, g.c, {row, col}, total);
    }
  }
};
PK_KERNEL(gemm_reducescatter)
