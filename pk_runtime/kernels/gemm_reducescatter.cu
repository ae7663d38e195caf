// GEMM + reduce-scatter: every rank holds a K-slice of A and B; rank r owns rows r of C = sum_s A_s * B_s.
//
// A tile of somebody else's rows is pushed into the owner's slot for this rank and signalled. A tile of the own
// rows is computed later; before it leaves the registers, the partials of the others are added to it, in rank
// order, in fp32. The own tiles lag behind, so that the partials are there when they are needed and the last
// tiles have no link to cross.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 4, {2, 3, 4, 5, 6});
constexpr int block_n = knob("block_n", 256, {128, 192, 256});  // columns of an output tile
constexpr int super_m = knob("super_m", 4, {1, 2, 4, 8, 16});
constexpr int lag = knob("lag", 32, {0, 16, 32, 64, 96, 128, 192, 256});  // own tiles behind the others

struct gemm_reducescatter {
  using mm = gemm<128, block_n, 64, stages>;
  using chunk = tile<bf16, 128, block_n % 128 == 0 ? 128 : 64>;  // what moves at a time
  static constexpr int per_tile = block_n / chunk::cols;

  struct args {
    layout<bf16> a, b, c;        // a [W, M/W, K/W], b [K/W, N], c [M/W, N]
    parallel_layout<bf16> part;  // [W, M/W, N]: plane s is what rank s computed for the owner
    signals ready;               // one counter per tile of c, one signal from every peer

    PK_FN int rows() const { return a.tiles_down<chunk>(); }
    PK_FN int cols() const { return c.tiles_across<tile<bf16, 128, block_n>>(); }
    PK_FN int tasks() const { return a.planes * rows() * cols(); }
    // Task t of `rank`: {owner, row, col}. Tile u of every peer, then tile u - lag of the own rows, then u + 1.
    PK_FN coord place(int t, int rank) const {
      int peers = a.planes - 1, tiles = rows() * cols(), ahead = least(lag, tiles), alone = ahead * peers;
      int u = t < alone ? t / peers : ahead + (t - alone) / a.planes;
      int turn = t < alone ? t % peers : (t - alone) % a.planes;
      if (u >= tiles) u = t - peers * tiles, turn = peers;  // the last own tiles
      else if (turn == peers) u -= ahead;
      tile_place p = grouped(u, rows(), cols(), super_m);
      return {(rank + 1 + turn) % a.planes, p.row, p.col};
    }
  };
  struct shared {
    mm::inputs in;
    store_ring<chunk, mm::room_for<chunk>(2)> out;
  };

  static void setup(host& h, args& g) {
    h.input("a", g.a, h.world());
    h.input("b", g.b);
    h.output("c", g.c);
    h.require(g.a.cols == g.b.rows, "a and b must have the same local K");
    h.require(g.c.cols == g.b.cols && g.c.rows == g.a.rows, "c must be [M/W, N]");
    h.scratch("part", g.part, h.world(), g.c.rows, g.c.cols);
    h.signals("ready", g.ready, g.rows() * g.cols(), most(h.world() - 1, 1));
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      mm::load(in, g.a, at.plane, at.row, g.b, at.col);
      if (at.plane != self.rank()) continue;
      wait(self, g.ready, at.row * g.cols() + at.col, self.world() - 1);
      for (int r = 0; r < self.world(); ++r)
        if (r != self.rank()) mm::load_addend(in, g.part[self.rank()], r, at.row, at.col);
    }
  }

  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    mm::accumulator c;
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      mm::multiply(self, c, in, mm::steps(g.a));
      if (at.plane == self.rank())
        for (int r = 1; r < self.world(); ++r) mm::add(self, c, in, g.c, at.col);
      mm::emit(self, c, out);
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      coord at = g.place(t, self.rank());
      bool own = at.plane == self.rank();
      for (int col = per_tile * at.col; col < per_tile * (at.col + 1); ++col) {
        chunk& x = out.wait();
        if (col < g.c.tiles_across<chunk>()) {
          if (own) store_async(self, g.c, {at.row, col}, x);
          else store_async(self, g.part[at.plane], {self.rank(), at.row, col}, x);
        }
        out.release();
      }
      if (!own) signal(self, g.ready, at.plane, at.row * g.cols() + at.col);
    }
  }
};
PK_KERNEL(gemm_reducescatter)
