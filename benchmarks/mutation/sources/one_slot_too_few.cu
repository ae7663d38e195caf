// Signals the slot behind the last one: the mistake of a count that does not follow the shape.
#include <pk/pk.h>
using namespace pk;

struct one_slot_too_few {
  struct args {
    layout<bf16> x, y;
    signals here;
  };
  struct comm_shared {};

  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.signals("here", g.here, 1, 1);
  }

  PK_ROLE communicator(group<1> self, const args& g, comm_shared&) {
    signal(self, g.here, (self.rank() + 1) % self.world(), 1);
    (void)g;
  }
};
PK_KERNEL(one_slot_too_few)
