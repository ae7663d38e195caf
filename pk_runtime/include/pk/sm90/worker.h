// Who executes a role. An `issuer` is one thread of the producer warpgroup (loader, storer); a `group` is
// G warpgroups acting together (consumer, communicator), whose thread 0 issues copies and signals. group<0> is
// the two warps that the issuers of a compute SM leave over: a communicator beside a GEMM.
#pragma once

#include <type_traits>

#include <pk/sm90/state.h>
#include <pk/sm90/trace.h>

namespace pk {

struct worker {
  const sm90::launch* run;
  int first_block, count;  // the blocks that run this role
  std::uint32_t epoch;
  sm90::role role;
#ifdef PK_TRACE
  int recorder;  // the thread that records for the role
#endif

  PK_DEVICE int rank() const { return run->rank; }
  PK_DEVICE int world() const { return run->world; }
  PK_DEVICE int block() const { return int(blockIdx.x) - first_block; }
  PK_DEVICE int blocks() const { return count; }
  // The tasks of this block out of n, dealt round robin over the blocks that run the role.
  PK_DEVICE strided tasks(int n) const { return {block(), blocks(), n}; }
};

struct issuer : worker {
  PK_DEVICE bool leads() const { return true; }
  PK_DEVICE void sync() const {}
};

template <int G = 2>
struct group : worker {
  static constexpr int warpgroups = G, threads = threads_of(G);
  int first_thread;  // of the block's; a multiple of 64
  PK_DEVICE int thread() const { return int(threadIdx.x) - first_thread; }
  PK_DEVICE bool leads() const { return thread() == 0; }
  // A block has one group that begins at thread 0 and at most one other: each has a barrier.
  PK_DEVICE void sync() const { sm90::named_barrier(first_thread == 0 ? 1 : 2, threads); }
  // The same in all threads of a warp, and known to be.
  PK_DEVICE int warpgroup() const { return G < 2 ? 0 : __shfl_sync(0xffffffffu, thread() / 128, 0); }
};

namespace sm90 {

// --- shared memory of a block -------------------------------------------------------------------------

// In front of the author's `shared`: the runtime's own KiB.
struct block_state {
  static constexpr int bytes = 1024, slots = 32;
  std::uint64_t full[slots], empty[slots];  // by unit of 8 KiB: a ring slot is one or more units
  std::uint32_t epoch, roles_left;
  std::int32_t rings;           // constructed so far
  std::int32_t ring_at[slots];  // number of the ring that begins at a unit
#ifdef PK_TRACE
  std::uint32_t traced[4];  // by role
#endif
};
static_assert(sizeof(block_state) <= block_state::bytes);

inline constexpr int unit_bytes = 8192;  // 64 rows x 128 bytes, the box of every bulk tensor copy

extern __shared__ __align__(1024) unsigned char block_memory[];

PK_DEVICE block_state& this_block() { return *reinterpret_cast<block_state*>(block_memory); }

// Number of the 8 KiB unit in which `at` of the author's shared memory lies.
PK_DEVICE int unit_of(const void* at) {
  return int(shared_address(at) - shared_address(block_memory) - block_state::bytes) / unit_bytes;
}

#ifdef PK_TRACE
template <class Detail>
PK_DEVICE void mark(const worker& self, moment what, Detail detail) {
  mark_at(self.role, self.recorder, this_block().traced, what, std::uint32_t(detail));
}
#endif

// --- ends -----------------------------------------------------------------------------------------

// Stops the kernel on this GPU; its peers' waits run out in turn. `describe` fills in its part of the
// record. Inline to the last: a call would cost the register budgets.
template <class Describe>
PK_DEVICE void stop(const worker& self, failure_kind kind, Describe describe) {
  if (failure* f = self.run->failures) {
    f += int(blockIdx.x) * 4 + (int(self.role) & 3);
    f->rank = self.run->rank, f->block = int(blockIdx.x), f->role = int(self.role), f->epoch = int(self.epoch);
    describe(*f);
    __threadfence_system();
    f->kind = int(kind);  // last: a record with a kind is whole
    __threadfence_system();
  }
  asm volatile("trap;");
  __builtin_unreachable();
}

PK_DEVICE void stop_waiting(const worker& self, failure_kind kind, int object, int slot, std::uint64_t seen,
                            std::uint64_t wanted, std::uint64_t waited) {
  stop(self, kind, [=](failure& f) {
    f.object = object, f.slot = slot;
    f.seen = seen, f.wanted = wanted, f.waited_ns = waited;
  });
}

// --- bounded waits ----------------------------------------------------------------------------------

// Until counter >= wanted, as a signed difference. Acquires.
template <class Counter>
PK_DEVICE void await_counter(const worker& self, failure_kind kind, int object, int slot, const Counter* counter,
                             Counter wanted) {
  using difference = std::make_signed_t<Counter>;
  Counter seen = load_acquire(counter);
  if (difference(seen - wanted) >= 0) return;
  PK_MARK(self, moment::wait_begins, kind);
  const std::uint64_t start = global_time();
  for (;;) {
    seen = load_acquire(counter);
    if (difference(seen - wanted) >= 0) {
      PK_MARK(self, moment::wait_ends, kind);
      return;
    }
    const std::uint64_t waited = global_time() - start;
    if (waited > self.run->timeout_ns) stop_waiting(self, kind, object, slot, seen, wanted, waited);
  }
}

// Until the phase of that parity of an mbarrier is complete: a slot of the ring that begins at `unit`. Twice as
// patient as the waits between ranks: the role that waits for a peer is the cause, and reports first.
PK_DEVICE void await_phase(const worker& self, failure_kind kind, int unit, int slot, std::uint32_t bar,
                           std::uint32_t parity) {
  if (mbarrier_try_wait(bar, parity)) return;
  PK_MARK(self, moment::wait_begins, kind);
  const std::uint64_t start = global_time();
  while (!mbarrier_try_wait(bar, parity)) {
    const std::uint64_t waited = global_time() - start;
    if (waited > 2 * self.run->timeout_ns)
      stop_waiting(self, kind, this_block().ring_at[unit], slot, parity ^ 1, parity, waited);
  }
  PK_MARK(self, moment::wait_ends, kind);
}

}  // namespace sm90
}  // namespace pk
