// What a block does before, between and after the author's roles, and how the launcher starts it.
//
// Compute blocks come first, the last `comm_sms` blocks are communicators. A compute block has the
// consumer's G warpgroups and one producer warpgroup, whose first thread of warp 0 is the loader and of warp 1
// the storer. All threads of a warpgroup take their registers in one branch, its own.
#pragma once

#include <new>

#include <pk/common/roles.h>
#include <pk/sm90/host.h>
#include <pk/sm90/mma.h>
#include <pk/sm90/ring.h>

namespace pk::sm90 {

using namespace parts;

// The worker type that a role's first parameter names.
template <class W, class A, class S> W worker_of(void (*)(W, const A&, S&));

template <class K> struct consumer_of { using type = group<0>; };
template <has_consumer K> struct consumer_of<K> { using type = decltype(worker_of(&K::consumer)); };
template <class K> struct communicator_of { using type = group<0>; };
template <has_communicator K> struct communicator_of<K> { using type = decltype(worker_of(&K::communicator)); };

// Numbers of a kernel that follow from its roles.
template <class K>
struct plan {
  using args = typename K::args;
  using shared = typename shared_of<K>::type;
  using comm_shared = typename comm_shared_of<K>::type;
  using consumer = typename consumer_of<K>::type;
  using communicator = typename communicator_of<K>::type;

  static constexpr int comm_sms = comm_sms_of<K>();
  static constexpr int issuers = int(has_loader<K>) + int(has_storer<K>);
  static constexpr int compute_roles = issuers + int(has_consumer<K>);
  static constexpr int compute_warpgroups = consumer::warpgroups + (issuers > 0 ? 1 : 0);
  static constexpr int warpgroups = most(compute_warpgroups, communicator::warpgroups);
  static constexpr int threads = warpgroups * 128;
  static constexpr int shared_bytes = block_state::bytes + most(sizeof(shared), sizeof(comm_shared));

  // 64 K registers an SM, in eights a thread. Issuers live on few; what they give back goes to the groups:
  // 72 and 216 for two consumer warpgroups. With one or two warpgroups everybody has 255 anyway.
  static constexpr int at_launch = 65536 / threads / 8 * 8;
  static constexpr bool budgets = warpgroups > 2 && has_consumer<K> && issuers > 0;
  static constexpr int few = warpgroups == 3 ? 72 : 56;
  static constexpr int many = least(240, (at_launch * warpgroups - few) / (warpgroups - 1) / 8 * 8);

  static_assert(compute_roles > 0 || has_communicator<K>,
                "a kernel needs at least one role: loader, consumer, storer or communicator");
  static_assert(has_communicator<K> == (comm_sms > 0), "comm_sms > 0 and a communicator role go together");
  static_assert(threads <= 1024, "the roles of a block need more than 1024 threads");
  static_assert(shared_bytes <= shared_memory_bytes,
                "the shared memory of a block is 227 KiB: use fewer stages or smaller tiles");
  static_assert(sizeof(args) + sizeof(launch) <= 32000, "the kernel's arguments are too large");
};

// --- the two ends of a block --------------------------------------------------------------------------


// Tells every peer that this rank enters (or leaves). Lane r tells rank r.
PK_DEVICE void tell_peers(const launch& run, std::uint32_t (control::*at)[max_ranks]) {
  const int r = int(threadIdx.x) & 31;
  if (r < run.world) add_release(&(run.controls[r]->*at)[run.rank], 1u);
}

// Until every rank has entered (or left) `times` launches. Lane r waits for rank r.
PK_DEVICE void await_peers(const worker& self, failure_kind kind, std::uint32_t (control::*at)[max_ranks],
                           std::uint32_t times) {
  const launch& run = *self.run;
  const int r = int(threadIdx.x) & 31;
  if (r < run.world) await_counter(self, kind, -1, r, &(run.controls[run.rank]->*at)[r], times);
}

// Constructs the author's shared memory and opens the launch. With the caller's tensors bound by peers, all
// ranks must be inside; otherwise none may be more than one launch behind, because scratch and counters
// have two copies.
template <class Shared>
PK_DEVICE std::uint32_t enter(const launch& run) {
  const control& own = *run.controls[run.rank];
  if (threadIdx.x / 32 == 1 && threadIdx.x % 32 == 0) {
    this_block().roles_left = 0, this_block().rings = 0;
    if constexpr (!std::is_same_v<Shared, nothing>) new (block_memory + block_state::bytes) Shared;
    fence_mbarrier_init();
  } else if (threadIdx.x / 32 == 0) {
    const bool together = run.peers_bound || run.symmetric;
    if (together && blockIdx.x == 0) tell_peers(run, &control::entered);
    const std::uint32_t epoch = load_acquire(&own.epoch);
    if (threadIdx.x == 0) this_block().epoch = epoch;
    if (together)
      await_peers({&run, 0, 0, epoch, role::none}, failure_kind::peers_to_enter, &control::entered,
                  epoch + (run.peers_bound ? 1 : 0));
  }
  __syncthreads();
  fence_async();  // whoever issues copies: after the acquires above, also to what those copies touch
  return this_block().epoch;
}

// The last block of a launch closes it. One thread.
PK_DEVICE void leave_block(const worker& self) {
  const launch& run = *self.run;
  control& own = *run.controls[run.rank];
  if (count_up_to(&own.blocks_left, gridDim.x - 1) != gridDim.x - 1) return;
  if (run.peers_bound) {
    for (int i = 0; i < run.world; ++i) add_release(&run.controls[i]->left[run.rank], 1u);
    for (int i = 0; i < run.world; ++i)
      await_counter(self, failure_kind::peers_to_leave, -1, i, &own.left[i], self.epoch + 1);
  }
  own.epoch = self.epoch + 1;
}

// The leading thread of each of the block's `roles`, after its role: what it stored has landed.
template <class Worker>
PK_DEVICE void leave(Worker self, int roles) {
  if (!self.leads()) return;
  bulk_wait();
  if (add_shared(shared_address(&this_block().roles_left), 1) + 1 == std::uint32_t(roles)) leave_block(self);
}

// --- roles --------------------------------------------------------------------------------------------

template <class Worker>
PK_DEVICE Worker make(const worker& at, role which) {
  Worker self;
  static_cast<worker&>(self) = at;
  self.role = which;
  return self;
}

template <class K>
PK_DEVICE void compute(const typename K::args& g, typename plan<K>::shared& s, worker at, int warpgroup) {
  using P = plan<K>;
  if (warpgroup < P::consumer::warpgroups) {
    if constexpr (has_consumer<K>) {
      if constexpr (P::budgets) registers_up<P::many>();
      auto self = make<typename P::consumer>(at, role::consumer);
      K::consumer(self, g, s);
      leave(self, P::compute_roles);
    }
  } else {
    if constexpr (P::budgets) registers_down<P::few>();
    const int thread = int(threadIdx.x) - P::consumer::warpgroups * 128;
    if constexpr (has_loader<K>) {
      if (thread == 0) {
        auto self = make<issuer>(at, role::loader);
        K::loader(self, g, s);
        leave(self, P::compute_roles);
      }
    }
    if constexpr (has_storer<K>) {
      if (thread == 32) {
        auto self = make<issuer>(at, role::storer);
        K::storer(self, g, s);
        leave(self, P::compute_roles);
      }
    }
  }
}

template <class K>
PK_DEVICE void communicate(const typename K::args& g, typename plan<K>::comm_shared& s, worker at, int warpgroup) {
  using P = plan<K>;
  if (warpgroup < P::communicator::warpgroups) {
    if constexpr (P::budgets && P::communicator::warpgroups < P::warpgroups) registers_up<P::many>();
    auto self = make<typename P::communicator>(at, role::communicator);
    K::communicator(self, g, s);
    leave(self, 1);
  } else {
    if constexpr (P::budgets) registers_down<P::few>();
  }
}

template <class K>
PK_DEVICE void run(const typename K::args& g, const launch& l) {
  using P = plan<K>;
  const int compute_blocks = int(gridDim.x) - P::comm_sms;
  const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x / 128), 0);
  unsigned char* const shared = block_memory + block_state::bytes;
  if (int(blockIdx.x) < compute_blocks) {
    const std::uint32_t epoch = enter<typename P::shared>(l);
    const worker at = {&l, 0, compute_blocks, epoch, role::none};
    if constexpr (P::compute_roles > 0) compute<K>(g, *reinterpret_cast<typename P::shared*>(shared), at, warpgroup);
    else if (threadIdx.x == 0) leave_block(at);
  } else if constexpr (has_communicator<K>) {
    const std::uint32_t epoch = enter<typename P::comm_shared>(l);
    const worker at = {&l, compute_blocks, P::comm_sms, epoch, role::none};
    communicate<K>(g, *reinterpret_cast<typename P::comm_shared*>(shared), at, warpgroup);
  }
}

}  // namespace pk::sm90
