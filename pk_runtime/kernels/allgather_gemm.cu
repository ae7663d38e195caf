// All-gather + GEMM: A is sharded by rows, C_r = all_gather(A) * B_r (Megatron's column-parallel linear).
//
// Communicator SMs push the own shard into every peer's copy of A, a segment of a row block at a time, and
// signal each one. Loaders multiply the own rows first and wait for a peer's row block only when they reach it.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 4, {2, 3, 4});
constexpr int super_m = knob("super_m", 8, {1, 2, 4, 8, 16});
constexpr int segment = knob("segment", 4, {1, 2, 4, 8, 16});  // chunks pushed between two signals

struct allgather_gemm {
  static constexpr int comm_sms = knob("comm_sms", 16, {4, 6, 8, 12, 16, 20, 24, 32});
  using mm = gemm<128, 256, 64, stages>;
  using chunk = tile<bf16, 128, 128>;
  using out_chunk = tile<bf16, 128, 128>;

  struct args {
    layout<bf16> a, b, c;        // a [M/W, K], b [K, N/W], c [W, M/W, N/W]
    parallel_layout<bf16> full;  // [W, M/W, K]: plane s is rank s's shard, pushed by rank s
    signals ready;               // one counter per (source rank, row block), one signal per segment

    PK_FN int rows() const { return a.tiles_down<chunk>(); }
    PK_FN int cols() const { return c.tiles_across<tile<bf16, 128, 256>>(); }
    PK_FN int segments() const { return ceil_div(a.tiles_across<chunk>(), segment); }
    PK_FN int tasks() const { return c.planes * rows() * cols(); }
    // Task t of `rank`: its own rows first, then the next rank's, and so on round the ring.
    PK_FN coord place(int t, int rank) const {
      int shard = rows() * cols();
      tile_place p = grouped(t % shard, rows(), cols(), super_m);
      return {(rank + t / shard) % c.planes, p.row, p.col};
    }
  };
  struct shared {
    mm::inputs in;
    store_ring<out_chunk, 1> out;
  };
  struct comm_shared {
    mover<chunk, 6> pipe;
  };

  static void setup(host& h, args& g) {
    h.input("a", g.a);
    h.input("b", g.b);
    h.output("c", g.c, h.world());
    h.require(g.a.cols == g.b.rows, "a and b must have the same K");
    h.require(g.c.rows == g.a.rows && g.c.cols == g.b.cols, "c must be [M, N/W]");
    h.scratch("full", g.full, h.world(), g.a.rows, g.a.cols);
    h.signals("ready", g.ready, h.world() * g.rows(), g.segments());
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      if (at.plane == self.rank()) {
        mm::load(in, g.a, 0, at.row, g.b, at.col);
      } else {
        wait(self, g.ready, at.plane * g.rows() + at.row, g.segments());
        mm::load(in, g.full[self.rank()], at.plane, at.row, g.b, at.col);
      }
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
      for (int col = 2 * at.col; col < 2 * at.col + 2; ++col) {
        out_chunk& x = out.wait();
        if (col < g.c.tiles_across<out_chunk>()) store_async(self, g.c, {at.plane, at.row, col}, x);
        out.release();
      }
    }
  }

  PK_ROLE communicator(group<> self, const args& g, comm_shared& s) {
    auto pipe = s.pipe.open(self);
    for (int t : self.tasks(g.rows() * g.segments())) {
      int row = t / g.segments(), first = t % g.segments() * segment;
      pipe.move(
          min(segment, g.a.tiles_across<chunk>() - first),
          [&](auto& loads, chunk& x, int i) { loads.load(x, g.a, {row, first + i}); },
          [&](chunk& x, int i) {
            for (int p = 1; p < self.world(); ++p)
              store_async(self, g.full[(self.rank() + p) % self.world()], {self.rank(), row, first + i}, x);
          });
      for (int p = 1; p < self.world(); ++p)
        signal(self, g.ready, (self.rank() + p) % self.world(), self.rank() * g.rows() + row);
    }
  }
};
PK_KERNEL(allgather_gemm)
