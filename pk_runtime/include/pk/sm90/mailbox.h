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

// All of this thread's words of a slot, asked for at once; whether each carries this launch's number.
template <class T, int R, int C, int G>
PK_DEVICE bool look(group<G> self, slab<T, R, C, G>& v, const mailbox<slab<T, R, C, G>>& m, int source, int slot) {
  const std::uint32_t flag = self.epoch + 1;
  bool here = true;
  PK_UNROLL
  for (int i = 0; i < v.pieces; ++i) {
    here &= load_flagged(half_piece(self, m, self.rank(), source, slot, self.thread(), i, 0), flag, v.data[i].x, v.data[i].y);
    here &= load_flagged(half_piece(self, m, self.rank(), source, slot, self.thread(), i, 1), flag, v.data[i].z, v.data[i].w);
  }
  return here;
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

// v = what `source` posts to this rank's slot in this launch; waits for it.
template <class T, int R, int C, int G>
PK_DEVICE void take(group<G> self, slab<T, R, C, G>& v, const mailbox<slab<T, R, C, G>>& m, int source, int slot) {
  sm90::check_box(self, m, source, slot);
  if (sm90::look(self, v, m, source, slot)) return;
  PK_MARK(self, sm90::moment::wait_begins, sm90::failure_kind::mailbox);
  const std::uint64_t start = sm90::global_time();
  while (!sm90::look(self, v, m, source, slot)) {
    const std::uint64_t waited = sm90::global_time() - start;
    if (waited > self.run->timeout_ns)
      sm90::stop(self, sm90::failure_kind::mailbox, [&](sm90::failure& f) {
        f.object = m.id, f.slot = slot, f.plane = source, f.waited_ns = waited;
        f.seen = self.epoch, f.wanted = self.epoch + 1;
      });
  }
  PK_MARK(self, sm90::moment::wait_ends, sm90::failure_kind::mailbox);
}

// sum = the slabs of all ranks, in rank order: `own` and what the others post to this slot.
template <class T, int R, int C, int G>
PK_DEVICE void take_sum(group<G> self, slab_sum<T, R, C, G>& sum, const mailbox<slab<T, R, C, G>>& m, int slot,
                        const slab<T, R, C, G>& own) {
  zero(sum);
  for (int r = 0; r < self.world(); ++r) {
    slab<T, R, C, G> v = own;
    if (r != self.rank()) take(self, v, m, r, slot);
    accumulate(self, sum, v);
  }
}

}  // namespace pk
