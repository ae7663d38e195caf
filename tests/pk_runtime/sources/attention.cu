// One block of attention: y = softmax(q k^T) v. A tile goes through plain shared memory between two products.
#include <pk/pk.h>
using namespace pk;

struct attention {
  using Q = tile<bf16, 128, 64>;
  using P = tile<bf16, 128, 128>;
  struct slot { Q q, k, v; };
  struct args {
    layout<bf16> q, k, v, y;  // [planes, 128, 64]
    PK_FN int tasks() const { return q.planes; }
  };
  struct shared {
    load_ring<slot, 2> in;
    store_ring<Q, 1> out;
    P p;
  };

  static void setup(host& h, args& g) {
    h.input("q", g.q);
    h.input("k", g.k);
    h.input("v", g.v);
    h.output("y", g.y);
    h.require(g.k.rows <= 128 && g.q.cols <= 64, "one tile of keys, one of the head");
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {
      slot& x = in.acquire();
      in.load(x.q, g.q, {t, 0, 0});
      in.load(x.k, g.k, {t, 0, 0});
      in.load(x.v, g.v, {t, 0, 0});
      in.commit();
    }
  }

  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    reg_tile<float, 128, 128> scores;
    reg_tile<float, 128, 64> y;
    reg_rows<float, 128> top, sum;
    for ([[maybe_unused]] int t : self.tasks(g.tasks())) {
      slot& x = in.wait();
      zero(scores);
      mma_abt_async(self, scores, x.q, x.k);
      mma_wait<0>(self, scores);
      int keys = g.k.rows;
      map(self, scores, [=](float v, int, int col) { return col < keys ? v : -1e30f; });
      row_reduce(self, top, scores, -1e30f, [](float a, float b) { return fmaxf(a, b); });
      map_rows(self, scores, top, [](float v, float m) { return expf(v - m); });
      row_reduce(self, sum, scores, 0.0f, [](float a, float b) { return a + b; });
      store(self, s.p, scores);
      zero(y);
      mma_async(self, y, s.p, x.v);
      mma_wait<0>(self, y);
      in.release();
      map_rows(self, y, sum, [](float v, float total) { return v / total; });
      store(self, out.acquire(), y);
      out.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      store_async(self, g.y, {t, 0, 0}, out.wait());
      out.release();
    }
  }
};
PK_KERNEL(attention)
