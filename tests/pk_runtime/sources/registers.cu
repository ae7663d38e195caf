// Every operation on register tiles, one warpgroup, other element types: y = row-wise softmax-like of x in fp32,
// z = x squared, by halves, in fp16.
#include <pk/pk.h>
using namespace pk;

struct registers {
  using X = tile<float, 64, 128>;
  using Half = tile<fp16, 64, 64>;
  struct args {
    layout<float> x, y;
    layout<fp16> z;
    PK_FN int tasks() const { return x.tiles_down<X>(); }
  };
  struct shared {
    load_ring<X, 2, 1> in;
    store_ring<X, 1, 1> out;
    store_ring<Half, 2, 1> halves;
  };

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.output("z", g.z);
    h.require(g.x.cols == 128, "x must be [M, 128]");
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {
      in.load(in.acquire(), g.x, {t, 0});
      in.commit();
    }
  }

  PK_ROLE consumer(group<1> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    auto halves = s.halves.producer(self);
    reg_tile<float, 64, 128, 1> v, squares;
    reg_rows<float, 64, 1> most_of_row;
    for ([[maybe_unused]] int t : self.tasks(g.tasks())) {
      X& x = in.wait();
      load(self, v, x);
      zero(squares);
      accumulate(self, squares, x);
      in.release();
      zip(self, squares, v, [](float a, float b) { return a * b; });
      for (int j = 0; j < 2; ++j) {
        store_columns(self, halves.acquire(), squares, j);
        halves.commit();
      }
      row_reduce(self, most_of_row, v, -1e30f, [](float a, float b) { return fmaxf(a, b); });
      map_rows(self, v, most_of_row, [](float a, float m) { return a - m; });
      map(self, v, [](float a, int row, int col) { return expf(a) + float(row) - float(col); });
      store(self, out.acquire(), v);
      out.commit();
    }
  }

  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    auto halves = s.halves.consumer(self);
    for (int t : self.tasks(g.tasks())) {
      for (int j = 0; j < 2; ++j) {
        store_async(self, g.z, {t, j}, halves.wait());
        halves.release();
      }
      store_async(self, g.y, {t, 0}, out.wait());
      out.release();
    }
  }
};
PK_KERNEL(registers)
