// What a block does before, between and after the author's roles, and how the launcher starts it.
//
// Compute blocks come first, the last `comm_sms` blocks are communicators. A compute block has the
// consumer's G warpgroups and one producer warpgroup, whose first thread of warp 0 is the loader and of warp 1
// the storer; warps 2 and 3 are a communicator's that is a group<0>, and other communicators with comm_sms = 0
// follow as warpgroups of their own. All threads of a warpgroup take their registers in one branch, its own.
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

// Shared memory of a struct of the author's; structs of tiles are multiples of 1024 bytes.
template <class S>
inline constexpr int size_of = std::is_empty_v<S> ? 0 : int(sizeof(S) + 1023) / 1024 * 1024;

// Numbers of a kernel that follow from its roles.
template <class K>
struct plan {
  using args = typename K::args;
  using shared = typename shared_of<K>::type;
  using comm_shared = typename comm_shared_of<K>::type;
  using consumer = typename consumer_of<K>::type;
  using communicator = typename communicator_of<K>::type;

  static constexpr int comm_sms = comm_sms_of<K>();
  static constexpr bool inside = has_communicator<K> && comm_sms == 0;  // a communicator in every block
  static constexpr bool spare = inside && communicator::warpgroups == 0;
  static constexpr int issuers = int(has_loader<K>) + int(has_storer<K>);
  static constexpr int compute_roles = issuers + int(has_consumer<K>) + int(inside);
  static constexpr int first_communicator = consumer::warpgroups + (issuers > 0 || spare ? 1 : 0);  // a warpgroup
  static constexpr int compute_warpgroups = first_communicator + (inside ? communicator::warpgroups : 0);
  static constexpr int warpgroups = most(compute_warpgroups, communicator::warpgroups);
  static constexpr int threads = warpgroups * 128;
  static constexpr int shared_bytes =
      block_state::bytes + (inside ? size_of<shared> + size_of<comm_shared>
                                   : most(size_of<shared>, size_of<comm_shared>));

  // 64 K registers an SM, in eights a thread. Issuers live on few, unless a communicator's slabs are beside them;
  // what they give back goes to the consumers: 72 and 216 for two consumer warpgroups, 136 and 184 with a spare
  // communicator. With one or two warpgroups everybody has 255 anyway.
  static constexpr int at_launch = 65536 / threads / 8 * 8;
  static constexpr bool budgets = warpgroups > 2 && has_consumer<K> && issuers > 0;
  static constexpr int few = spare ? 136 : warpgroups == 3 ? 72 : 56;
  static constexpr int many = least(240, (at_launch * warpgroups - few) / (warpgroups - 1) / 8 * 8);

  static_assert(compute_roles > 0 || has_communicator<K>,
                "a kernel needs at least one role: loader, consumer, storer or communicator");
  static_assert(has_communicator<K> || comm_sms == 0, "comm_sms > 0 needs a communicator role");
  static_assert(threads <= 1024, "the roles of a block need more than 1024 threads");
  static_assert(shared_bytes <= shared_memory_bytes,
                "the shared memory of a block is 227 KiB: use fewer stages or smaller tiles");
  static_assert(comm_sms == 0 || communicator::warpgroups > 0, "group<0> is a communicator inside compute SMs: comm_sms = 0");
  static_assert(sizeof(args) + sizeof(launch) <= 32000, "the kernel's arguments are too large");
};

// --- the two ends of a block --------------------------------------------------------------------------

// Tells every peer that this rank enters (or leaves). Lane r tells rank r.
PK_DEVICE void tell_peers(const launch& run, std::uint32_t (control::*at)[max_ranks]) {
  const int r = int(threadIdx.x) & 31;
  if (r < run.world) add_release(&(run.controls[r]->*at)[run.rank], 1u);
}

template <class Shared>
PK_DEVICE void construct(int at) {
  if constexpr (!std::is_empty_v<Shared>) new (block_memory + at) Shared;
}

// Constructs the author's shared memory and opens the launch. With the caller's tensors bound by peers, all
// ranks must be inside; otherwise none may be more than one launch behind, because scratch and counters
// have two copies.
template <class... Shared>
PK_DEVICE std::uint32_t enter(const launch& run) {
  const control& own = *run.controls[run.rank];
  const bool together = run.peers_bound || run.symmetric;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) & 31;
  if (warp == 2 && together && blockIdx.x == 0) {
    tell_peers(run, &control::entered);
  } else if (warp == 1 && lane == 0) {
    this_block().roles_left = 0, this_block().rings = 0;
#ifdef PK_TRACE
    for (std::uint32_t& n : this_block().traced) n = 0;
#endif
    int at = block_state::bytes;
    ((construct<Shared>(at), at += size_of<Shared>), ...);
    fence_mbarrier_init();
  } else if (warp == 0) {
    // Both reads in one instruction: the last lane reads this block's epoch, lane r what rank r has entered.
    const std::uint32_t seen = load_acquire(together && lane < run.world ? &own.entered[lane] : &own.epoch[blockIdx.x]);
    const std::uint32_t epoch = __shfl_sync(0xffffffffu, seen, 31), wanted = epoch + (run.peers_bound ? 1 : 0);
    if (lane == 0) this_block().epoch = epoch;
    if (together && lane < run.world && std::int32_t(seen - wanted) < 0)
      await_counter({&run, 0, 0, epoch, role::none}, failure_kind::peers_to_enter, -1, lane, &own.entered[lane], wanted);
  }
  __syncthreads();
  // Whoever issues copies: after the acquires above, also to what those copies touch. Without shared memory there
  // are none.
  if constexpr ((!std::is_empty_v<Shared> || ...)) fence_async();
  return this_block().epoch;
}

// Ends a block: one thread, after all its roles. Every block tells all ranks; the kernel is complete only when
// block 0 has heard from all blocks of all ranks.
PK_DEVICE void leave_block(const worker& self) {
  const launch& run = *self.run;
  control& own = *run.controls[run.rank];
  own.epoch[blockIdx.x] = self.epoch + 1;
  if (!run.peers_bound) return;
  fence_system();
  for (int r = 0; r < run.world; ++r) add_relaxed(&run.controls[r]->left[run.rank], 1u);
  if (blockIdx.x > 0) return;
  for (int i = 0; i < run.world; ++i)
    await_counter(self, failure_kind::peers_to_leave, -1, i, &own.left[i], (self.epoch + 1) * gridDim.x);
}

// Each of the block's `roles`, after it: what it stored has landed or, from registers, is released by the end.
template <class Worker>
PK_DEVICE void leave(Worker self, int roles) {
  self.sync();
  if (!self.leads()) return;
  bulk_wait();
  PK_MARK(self, moment::role_ends, 0);
  if (add_shared(shared_address(&this_block().roles_left), 1) + 1 == std::uint32_t(roles)) leave_block(self);
}

// --- roles --------------------------------------------------------------------------------------------

template <class Worker>
PK_DEVICE Worker make(const worker& at, role which, int first_thread = 0) {
  Worker self;
  static_cast<worker&>(self) = at;
  self.role = which;
  if constexpr (!std::is_same_v<Worker, issuer>) self.first_thread = first_thread;
#ifdef PK_TRACE
  self.recorder = std::is_same_v<Worker, issuer> ? int(threadIdx.x) : first_thread;
#endif
  PK_MARK(self, moment::role_begins, 0);
  return self;
}

template <class K>
PK_DEVICE void communicate(const typename K::args& g, typename plan<K>::comm_shared& s, worker at, int first_thread,
                           int roles) {
  auto self = make<typename plan<K>::communicator>(at, role::communicator, first_thread);
  K::communicator(self, g, s);
  leave(self, roles);
}

template <class K>
PK_DEVICE void compute(const typename K::args& g, typename plan<K>::shared& s, typename plan<K>::comm_shared& comm,
                       worker at, int warpgroup) {
  using P = plan<K>;
  if (warpgroup < P::consumer::warpgroups) {
    if constexpr (has_consumer<K>) {
      if constexpr (P::budgets) registers_up<P::many>();
      auto self = make<typename P::consumer>(at, role::consumer);
      K::consumer(self, g, s);
      leave(self, P::compute_roles);
    }
  } else if (!P::inside || warpgroup < P::first_communicator) {
    if constexpr (P::budgets) registers_down<P::few>();
    if constexpr (P::spare) {
      constexpr int first = P::consumer::warpgroups * 128 + 64;
      if (int(threadIdx.x) >= first) communicate<K>(g, comm, at, first, P::compute_roles);
    }
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
  } else if constexpr (P::inside) {
    if constexpr (P::budgets) registers_up<P::many>();
    communicate<K>(g, comm, at, P::first_communicator * 128, P::compute_roles);
  }
}

template <class K>
PK_DEVICE void run(const typename K::args& g, const launch& l) {
  using P = plan<K>;
  using shared = typename P::shared;
  using comm_shared = typename P::comm_shared;
  const int compute_blocks = int(gridDim.x) - P::comm_sms;
  const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x / 128), 0);
  unsigned char* const first = block_memory + block_state::bytes;
  if (int(blockIdx.x) < compute_blocks) {
    std::uint32_t epoch;
    if constexpr (P::inside) epoch = enter<shared, comm_shared>(l);
    else epoch = enter<shared>(l);
    const worker at = {&l, 0, compute_blocks, epoch, role::none};
    auto& comm = *reinterpret_cast<comm_shared*>(first + (P::inside ? size_of<shared> : 0));
    if constexpr (P::compute_roles > 0) compute<K>(g, *reinterpret_cast<shared*>(first), comm, at, warpgroup);
    else if (threadIdx.x == 0) leave_block(at);
  } else if constexpr (has_communicator<K>) {
    const std::uint32_t epoch = enter<comm_shared>(l);
    const worker at = {&l, compute_blocks, P::comm_sms, epoch, role::none};
    if (warpgroup < P::communicator::warpgroups) {
      if constexpr (P::budgets && P::communicator::warpgroups < P::warpgroups) registers_up<P::many>();
      communicate<K>(g, *reinterpret_cast<comm_shared*>(first), at, 0, 1);
    } else {
      if constexpr (P::budgets) registers_down<P::few>();
    }
  }
}

}  // namespace pk::sm90
