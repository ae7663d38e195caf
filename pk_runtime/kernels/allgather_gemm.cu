// All-gather + GEMM: A is sharded by rows, C_r = all_gather(A) * B_r (Megatron's column-parallel linear).
//
// Communicators push the own shard to one peer after the other, to the one that needs it first first, all rows
// of a few columns at a time, because all tiles of the next shard start with those. Loaders multiply the own rows
// first, then those of the next rank, and wait for columns only when they reach them. With comm_sms = 0 there is a
// communicator in every SM, beside the GEMM.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 4, {2, 3, 4, 5, 6});
constexpr int block_n = knob("block_n", 256, {128, 192, 256});  // columns of an output tile
constexpr int super_m = knob("super_m", 8, {1, 2, 4, 8, 16});
constexpr int segment = knob("segment", 8, {1, 2, 4, 8, 16});  // chunks of a row block that one counter stands for

struct allgather_gemm {
  static constexpr int comm_sms = knob("comm_sms", 0, {0, 4, 8, 12, 16, 20, 24, 32});
  using mm = gemm<128, block_n, 64, stages>;
  using chunk = tile<bf16, 128, block_n % 128 == 0 ? 128 : 64>;  // what moves at a time
  static constexpr int per_tile = block_n / chunk::cols;
  static constexpr int steps_per_segment = segment * chunk::cols / 64;
  using team = group<comm_sms == 0 ? 0 : 2>;

  struct args {
    layout<bf16> a, b, c;        // a [M/W, K], b [K, N/W], c [W, M/W, N/W]
    parallel_layout<bf16> full;  // [W, M/W, K]: plane s is rank s's shard, pushed by rank s
    signals ready;               // one counter per (source rank, row block, segment), one signal per chunk

    PK_FN int rows() const { return a.tiles_down<chunk>(); }
    PK_FN int cols() const { return c.tiles_across<tile<bf16, 128, block_n>>(); }
    PK_FN int segments() const { return ceil_div(a.tiles_across<chunk>(), segment); }
    PK_FN int slot(int source, int row, int part) const { return (source * rows() + row) * segments() + part; }
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
    store_ring<chunk, mm::room_for<chunk>(2)> out;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("a", g.a);
    h.input("b", g.b);
    h.output("c", g.c, h.world());
    h.require(g.a.cols == g.b.rows, "a and b must have the same K");
    h.require(g.c.rows == g.a.rows && g.c.cols == g.b.cols, "c must be [M, N/W]");
    h.scratch("full", g.full, h.world(), g.a.rows, g.a.cols);
    h.signals("ready", g.ready, h.world() * g.rows() * g.segments(), segment);
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      if (at.plane == self.rank()) {
        mm::load(in, g.a, 0, at.row, g.b, at.col);
      } else {
        mm::load(in, g.full[self.rank()], at.plane, at.row, g.b, at.col, [&](int k) {
          if (k % steps_per_segment == 0)
            wait(self, g.ready, g.slot(at.plane, at.row, k / steps_per_segment), segment);
        });
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
      for (int col = per_tile * at.col; col < per_tile * (at.col + 1); ++col) {
        chunk& x = out.wait();
        if (col < g.c.tiles_across<chunk>()) store_async(self, g.c, {at.plane, at.row, col}, x);
        out.release();
      }
    }
  }

  PK_ROLE communicator(team self, const args& g, comm_shared&) {
    int per_peer = g.rows() * g.segments() * segment;
    for (int t : self.tasks((self.world() - 1) * per_peer)) {
      int peer = (self.rank() + self.world() - 1 - t / per_peer) % self.world();
      int row = t % g.rows(), col = t % per_peer / g.rows();
      if (col < g.a.tiles_across<chunk>())
        copy<chunk>(self, place{g.a, coord{row, col}}, 1,
                    [&](int) { return place{g.full[peer], coord{self.rank(), row, col}}; });
      signal(self, g.ready, peer, g.slot(self.rank(), row, col / segment));
    }
  }
};
PK_KERNEL(allgather_gemm)
