// Taking from mailboxes: from one source, and from all peers at a time, which costs one look instead of one for each.
#pragma once

namespace pk {

// v = what `source` posts to this rank's slot in this launch; waits for it.
template <class T, int R, int C, int G>
PK_DEVICE void take(group<G> self, slab<T, R, C, G>& v, const mailbox<slab<T, R, C, G>>& m, int source, int slot) {
  slab<T, R, C, G> one[1];
  const int from[1] = {source};
  take(self, one, m, from, slot);
  v = one[0];
}

// f(source, v) for every peer, the next rank first, with what it posts to this rank's slot; `InFlight` at a time.
template <int InFlight = 3, class T, int R, int C, int G, class F>
PK_DEVICE void take_each(group<G> self, const mailbox<slab<T, R, C, G>>& m, int slot, F f) {
  for (int first = 1; first < self.world(); first += InFlight) {
    slab<T, R, C, G> v[InFlight];
    int from[InFlight];
    PK_UNROLL
    for (int i = 0; i < InFlight; ++i)
      from[i] = first + i < self.world() ? (self.rank() + first + i) % self.world() : -1;
    take(self, v, m, from, slot);
    PK_UNROLL
    for (int i = 0; i < InFlight; ++i)
      if (from[i] >= 0) f(from[i], v[i]);
  }
}

// sum = the slabs of all ranks, in rank order: `own` and what the others post to this slot; `InFlight` at a time.
template <int InFlight = 4, class T, int R, int C, int G>
PK_DEVICE void take_sum(group<G> self, slab_sum<T, R, C, G>& sum, const mailbox<slab<T, R, C, G>>& m, int slot,
                        const slab<T, R, C, G>& own) {
  zero(sum);
  for (int first = 0; first < self.world(); first += InFlight) {
    slab<T, R, C, G> v[InFlight];
    int from[InFlight];
    PK_UNROLL
    for (int i = 0; i < InFlight; ++i)
      from[i] = first + i < self.world() && first + i != self.rank() ? first + i : -1;
    take(self, v, m, from, slot);
    PK_UNROLL
    for (int i = 0; i < InFlight; ++i) {
      if (first + i == self.rank()) accumulate(self, sum, own);
      else if (from[i] >= 0) accumulate(self, sum, v[i]);
    }
  }
}

}  // namespace pk
