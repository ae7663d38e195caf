// What goes through registers: sum = all_reduce(x) by mailboxes, columns = part `rank` of everybody's x pushed by
// slabs, in communicators of every block; beside them loader and storer copy x, seen as one plane of wide rows.
#include <pk/pk.h>
using namespace pk;

struct slabs {
  using S = slab<bf16, 16, 64, 1>;
  using T = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, sum, wide, copied, columns;
    parallel_layout<bf16> parts, inbox;  // parts[p]: columns p of the own x; inbox: a plane per source
    mailbox<S> box;
    signals pushed;
    PK_FN int tasks() const { return sum.tiles_down<S>() * sum.tiles_across<S>(); }
    PK_FN coord at(int t) const { return {t / sum.tiles_across<S>(), t % sum.tiles_across<S>()}; }
    PK_FN int part_tasks() const { return columns.tiles_down<S>() * columns.tiles_across<S>(); }
  };
  struct shared {
    copy_ring<T, 3> pipe;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.input("x", g.wide, {.cols = 2 * g.x.cols});
    h.input_parts("x", g.parts, {.parts = h.world()});
    h.output("sum", g.sum);
    h.output("copied", g.copied, {.cols = 2 * g.x.cols});
    h.output("columns", g.columns, h.world());
    h.scratch("inbox", g.inbox, h.world(), g.parts.rows, g.parts.cols);
    h.mailbox("box", g.box, g.tasks());
    h.signals("pushed", g.pushed, g.part_tasks(), h.world());
  }

  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.wide.tiles_across<T>())) {
      pipe.load(pipe.acquire(), g.wide, {0, t});
      pipe.commit();
    }
  }
  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.wide.tiles_across<T>())) {
      store_async(self, g.copied, {0, t}, pipe.wait());
      pipe.release();
    }
  }
  PK_ROLE communicator(group<1> self, const args& g, comm_shared&) {
    for (int t : self.tasks(g.tasks())) {
      S v;
      slab_sum<bf16, 16, 64, 1> total;
      load(self, v, g.x, g.at(t));
      for (int i = 1; i < self.world(); ++i) post(self, g.box, (self.rank() + i) % self.world(), t, v);
      take_sum(self, total, g.box, t, v);
      convert(self, v, total);
      store(self, g.sum, g.at(t), v);
    }
    for (int t : self.tasks(g.part_tasks())) {
      S v;
      int across = g.columns.tiles_across<S>(), row = t / across, col = t % across;
      for (int i = 1; i <= self.world(); ++i) {
        int peer = (self.rank() + i) % self.world();
        load(self, v, g.parts[peer], {row, col});
        store(self, g.inbox[peer], {self.rank(), row, col}, v);
      }
      signal_all(self, g.pushed, t);
      wait(self, g.pushed, t, self.world());
      for (int r = 0; r < self.world(); ++r) {
        load(self, v, g.inbox[self.rank()], {r, row, col});
        store(self, g.columns, {r, row, col}, v);
      }
    }
  }
};
PK_KERNEL(slabs)
