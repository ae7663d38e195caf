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

// v[i] = what source[i], unless that is below 0, posts to this rank's slot in this launch; waits for all of them.
template <int N, class T, int R, int C, int G>
void take(group<G> self, slab<T, R, C, G> (&v)[N], const mailbox<slab<T, R, C, G>>& m, const int (&source)[N], int slot) {
  std::vector<sim::mail> wanted;
  for (int i = 0; i < N; ++i) {
    if (source[i] < 0) continue;
    wanted.push_back({source[i], v[i].ref()});
    v[i].ready_at = 0;
  }
  sim::take(*self.f, m.ref, slot, wanted);
}

}  // namespace pk
