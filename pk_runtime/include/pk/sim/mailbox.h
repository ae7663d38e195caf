// Mailboxes: symmetric memory in which data carries its own arrival, so that whoever takes a slab needs no
// signal and no barrier. A rank has one compartment of `slots` slots for every source.
#pragma once

#include <pk/sim/slab.h>

namespace pk {

template <class Slab>
struct mailbox {
  sim::mailbox_ref ref;
};

// v arrives in slot `slot` of `rank`'s box, in the compartment of this rank.
template <class T, int R, int C, int G>
void post(group<G> self, const mailbox<slab<T, R, C, G>>& m, int rank, int slot, const slab<T, R, C, G>& v) {
  sim::slab_use(*self.f, v.ready_at);
  sim::post(*self.f, m.ref, rank, slot, v.ref());
}

// v = what `source` posts to this rank's slot in this launch; waits for it.
template <class T, int R, int C, int G>
void take(group<G> self, slab<T, R, C, G>& v, const mailbox<slab<T, R, C, G>>& m, int source, int slot) {
  sim::take(*self.f, m.ref, source, slot, v.ref());
  v.ready_at = 0;
}

// sum = the slabs of all ranks, in rank order: `own` and what the others post to this slot.
template <class T, int R, int C, int G>
void take_sum(group<G> self, slab_sum<T, R, C, G>& sum, const mailbox<slab<T, R, C, G>>& m, int slot,
              const slab<T, R, C, G>& own) {
  zero(sum);
  for (int r = 0; r < self.world(); ++r) {
    slab<T, R, C, G> v = own;
    if (r != self.rank()) take(self, v, m, r, slot);
    accumulate(self, sum, v);
  }
}

}  // namespace pk
