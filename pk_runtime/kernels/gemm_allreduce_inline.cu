// GEMM + all-reduce without a communicator: C = sum_r A_r * B_r on every rank; K is the local contraction length.
//
// Tile t belongs to rank t % W. A tile of another owner is pushed into the owner's slot for this rank and signalled.
// A tile of the own is computed a little later; before it leaves the registers, the partials of the others are added
// to it, in rank order, in fp32, and the sum is pushed to every rank.
#include <pk/pk.h>
using namespace pk;

constexpr int stages = knob("stages", 4, {2, 3, 4, 5, 6});
constexpr int block_n = knob("block_n", 256, {128, 192, 256});  // columns of an output tile
constexpr int super_m = knob("super_m", 8, {1, 2, 4, 8, 16});
constexpr int lag = knob("lag", 32, {0, 8, 16, 32, 64, 128});  // own tiles behind the others

struct gemm_allreduce_inline {
  using mm = gemm<128, block_n, 64, stages>;
  using chunk = tile<bf16, 128, block_n % 128 == 0 ? 128 : 64>;  // what moves at a time
  static constexpr int per_tile = block_n / chunk::cols;

  struct task { int tile, owner; };
  struct args {
    layout<bf16> a, b;           // a [M, K], b [K, N]
    parallel_layout<bf16> c;     // [M, N], every tile written by its owner
    parallel_layout<bf16> part;  // [W, M, N]: plane s is what rank s computed; only owned tiles are used
    signals ready;               // one counter per tile, one signal from every peer

    PK_FN int rows() const { return a.tiles_down<chunk>(); }
    PK_FN int cols() const { return ceil_div(c.cols, block_n); }
    PK_FN int tiles() const { return rows() * cols(); }
    PK_FN int chunks() const { return c.tiles_across<chunk>(); }
    // Rounds of W tiles, one per owner; the own tile of a round comes `lag` rounds later. `tile` may lie behind the
    // last one.
    PK_FN int tasks(int world) const { return ceil_div(tiles(), world) * world; }
    PK_FN task at(int t, int rank, int world) const {
      int peers = world - 1, rounds = ceil_div(tiles(), world), ahead = least(lag, rounds), alone = ahead * peers;
      int round = t < alone ? t / peers : ahead + (t - alone) / world;
      int turn = t < alone ? t % peers : (t - alone) % world;
      if (round >= rounds) round = t - peers * rounds, turn = peers;  // the last own tiles
      else if (turn == peers) round -= ahead;
      int owner = (rank + 1 + turn) % world;
      return {round * world + owner, owner};
    }
    PK_FN tile_place place(int tile) const { return grouped(tile, rows(), cols(), super_m); }
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
    h.scratch("part", g.part, h.world(), g.c.rows, g.c.cols);
    h.signals("ready", g.ready, g.tiles(), most(h.world() - 1, 1));
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks(self.world()))) {
      task k = g.at(t, self.rank(), self.world());
      if (k.tile >= g.tiles()) continue;
      tile_place p = g.place(k.tile);
      mm::load(in, g.a, 0, p.row, g.b, p.col);
      if (k.owner != self.rank()) continue;
      wait(self, g.ready, k.tile, self.world() - 1);
      for (int r = 0; r < self.world(); ++r)
        if (r != self.rank()) mm::load_addend(in, g.part[self.rank()], r, p.row, p.col);
    }
  }

  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    mm::accumulator c;
    for (int t : self.tasks(g.tasks(self.world()))) {
      task k = g.at(t, self.rank(), self.world());
      if (k.tile >= g.tiles()) continue;
      mm::multiply(self, c, in, mm::steps(g.a));
      if (k.owner == self.rank())
        for (int r = 1; r < self.world(); ++r) mm::add(self, c, in, g.part[k.owner], g.place(k.tile).col);
      mm::emit(self, c, out);
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.tasks(self.world()))) {
      task k = g.at(t, self.rank(), self.world());
      if (k.tile >= g.tiles()) continue;
      tile_place p = g.place(k.tile);
      bool own = k.owner == self.rank();
      for (int col = per_tile * p.col; col < per_tile * (p.col + 1); ++col) {
        chunk& x = out.wait();
        if (col < g.chunks() && own)
          for (int i = 1; i <= self.world(); ++i) store_async(self, g.c[(k.owner + i) % self.world()], {p.row, col}, x);
        else if (col < g.chunks())
          store_async(self, g.part[k.owner], {self.rank(), p.row, col}, x);
        out.release();
      }
      if (!own) signal(self, g.ready, k.owner, k.tile);
    }
  }
};
PK_KERNEL(gemm_allreduce_inline)
