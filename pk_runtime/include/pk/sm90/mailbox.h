// Mailboxes: symmetric memory in which data carries its own arrival. Every 8 bytes hold 4 bytes of data and
// the number of the launch, so that whoever sees the number has the data: one crossing, no signal, no barrier,
// for twice the bytes. There are two copies, used by turns as scratch memory is (launch.h); a word of the launch
// before last carries another number, so nothing is ever reset.
#pragma once

#include <pk/sm90/slab.h>

namespace pk {

template <class Slab>
struct mailbox {
  static constexpr int piece_bytes = 32, threads = Slab::threads;  // a piece of 16 bytes with its flags
  static constexpr int slot_bytes = piece_bytes * threads * Slab::pieces;
  unsigned char* boxes[max_ranks] = {};  // [2][source][slots] on each rank
  int slots = 0, id = -1;
};

namespace sm90 {

// Half `half` of this thread's piece `i` of a slot; neighbours in a warp lie next to each other.
template <class Slab>
PK_DEVICE unsigned char* half_piece(const worker& self, const mailbox<Slab>& m, int rank, int source, int slot, int thread,
                                    int i, int half) {
  const std::int64_t index = (std::int64_t(copy_of(self.epoch)) * self.world() + source) * m.slots + slot;
  return m.boxes[rank] + index * m.slot_bytes + ((i * 2 + half) * m.threads + thread) * 16;
}

template <class Slab>
PK_DEVICE void check_box(const worker& self, const mailbox<Slab>& m, int rank, int slot) {
  if (unsigned(rank) < unsigned(self.world()) && unsigned(slot) < unsigned(m.slots)) return;
  stop(self, failure_kind::out_of_range, [&](failure& f) { f.object = m.id, f.slot = slot, f.plane = rank; });
}

// All of this thread's words of a slot from every source, asked for at once; the first source of which a word does not
// carry this launch's number, or -1. Sources below 0 are none.
template <int N, class T, int R, int C, int G>
PK_DEVICE int look(group<G> self, slab<T, R, C, G> (&v)[N], const mailbox<slab<T, R, C, G>>& m, int slot,
                   const int (&source)[N]) {
  constexpr int pieces = slab<T, R, C, G>::pieces;
  flagged words[N][pieces][2];
  PK_UNROLL
  for (int n = 0; n < N; ++n) {
    if (source[n] < 0) continue;
    PK_UNROLL
    for (int i = 0; i < 2 * pieces; ++i)
      words[n][i / 2][i % 2] = load_flagged(half_piece(self, m, self.rank(), source[n], slot, self.thread(), i / 2, i % 2));
  }
  const std::uint32_t flag = self.epoch + 1;
  int missing = -1;
  PK_UNROLL
  for (int n = N - 1; n >= 0; --n) {
    if (source[n] < 0) continue;
    PK_UNROLL
    for (int i = 0; i < pieces; ++i) {
      const flagged &low = words[n][i][0], &high = words[n][i][1];
      if (!low.carries(flag) || !high.carries(flag)) missing = source[n];
      v[n].data[i] = {low.first(), low.second(), high.first(), high.second()};
    }
  }
  return missing;
}

}  // namespace sm90

// v arrives in slot `slot` of `rank`'s box, in the compartment of this rank.
template <class T, int R, int C, int G>
PK_DEVICE void post(group<G> self, const mailbox<slab<T, R, C, G>>& m, int rank, int slot, const slab<T, R, C, G>& v) {
  sm90::check_box(self, m, rank, slot);
  const std::uint32_t flag = self.epoch + 1;
  PK_UNROLL
  for (int i = 0; i < v.pieces; ++i) {
    sm90::store_flagged(sm90::half_piece(self, m, rank, self.rank(), slot, self.thread(), i, 0), v.data[i].x, v.data[i].y, flag);
    sm90::store_flagged(sm90::half_piece(self, m, rank, self.rank(), slot, self.thread(), i, 1), v.data[i].z, v.data[i].w, flag);
  }
}

// v[i] = what source[i], unless that is below 0, posts to this rank's slot in this launch; waits for all of them.
template <int N, class T, int R, int C, int G>
PK_DEVICE void take(group<G> self, slab<T, R, C, G> (&v)[N], const mailbox<slab<T, R, C, G>>& m, const int (&source)[N],
                    int slot) {
  PK_UNROLL
  for (int i = 0; i < N; ++i)
    if (source[i] >= 0) sm90::check_box(self, m, source[i], slot);
  if (sm90::look(self, v, m, slot, source) < 0) return;
  PK_MARK(self, sm90::moment::wait_begins, sm90::failure_kind::mailbox);
  const std::uint64_t start = sm90::global_time();
  for (int missing; (missing = sm90::look(self, v, m, slot, source)) >= 0;) {
    const std::uint64_t waited = sm90::global_time() - start;
    if (waited > self.run->timeout_ns)
      sm90::stop(self, sm90::failure_kind::mailbox, [&](sm90::failure& f) {
        f.object = m.id, f.slot = slot, f.plane = missing, f.waited_ns = waited;
        f.seen = self.epoch, f.wanted = self.epoch + 1;
      });
  }
  PK_MARK(self, sm90::moment::wait_ends, sm90::failure_kind::mailbox);
}

}  // namespace pk
