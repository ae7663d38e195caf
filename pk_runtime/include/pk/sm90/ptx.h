// The Hopper instructions that the headers above are made of, one thin wrapper each. Shared memory is
// named by its 32-bit address in the shared window.
//
// Memory rules in one place. Bulk copies work in the async proxy. Their effects are ordered with ordinary
// accesses only by an observed completion (mbarrier, wait_group) or by a proxy fence. `.read` completion
// frees the source and says nothing of the destination.
#pragma once

#include <cstdint>

#include <pk/common/coord.h>

namespace pk::sm90 {

// An encoded tensor map, opaque here: 128 bytes, as CUtensorMap.
struct alignas(128) tensor_map {
  std::uint64_t opaque[16];
};

PK_DEVICE std::uint32_t shared_address(const void* at) { return std::uint32_t(__cvta_generic_to_shared(at)); }

PK_DEVICE std::uint64_t global_time() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// --- mbarriers -------------------------------------------------------------------------------------

PK_DEVICE void mbarrier_init(std::uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes initialised mbarriers known to the async proxy.
PK_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

PK_DEVICE void mbarrier_arrive(std::uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// The current phase now also waits for `bytes` of bulk loads. Not an arrival.
PK_DEVICE void mbarrier_expect(std::uint32_t bar, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// True once the phase of that parity is complete; sleeps a moment before it says no.
PK_DEVICE bool mbarrier_try_wait(std::uint32_t bar, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
  return done != 0;
}

// --- bulk tensor copies: boxes of a 3-D tensor map ---------------------------------------------------

PK_DEVICE void tma_load(std::uint32_t dst, const tensor_map& map, int col, int row, int plane, std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
      ::"r"(dst), "l"(&map), "r"(bar), "r"(col), "r"(row), "r"(plane)
      : "memory");
}

PK_DEVICE void tma_store(const tensor_map& map, int col, int row, int plane, std::uint32_t src) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(&map), "r"(src), "r"(col), "r"(row), "r"(plane)
               : "memory");
}

PK_DEVICE void tma_add(const tensor_map& map, int col, int row, int plane, std::uint32_t src) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
               ::"l"(&map), "r"(src), "r"(col), "r"(row), "r"(plane)
               : "memory");
}

// Bulk groups belong to the thread that commits them: only that thread can wait for them.
PK_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
PK_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
PK_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// --- fences and barriers -----------------------------------------------------------------------------

// Orders this thread's ordinary shared-memory accesses before later bulk copies and wgmma.
PK_DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for every state space: between an acquire and a bulk load of what it published.
PK_DEVICE void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

PK_DEVICE void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- counters that other GPUs see: system scope only ---------------------------------------------------

PK_DEVICE void add_release(std::uint32_t* at, std::uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// Before relaxed additions to several ranks: one fence is for all of them what a release is for one. Releases in a row
// each wait until the addition before has reached its GPU, a crossing there and back.
PK_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

PK_DEVICE void add_relaxed(std::uint32_t* at, std::uint32_t value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

PK_DEVICE void add_relaxed(std::uint64_t* at, std::uint64_t value) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

PK_DEVICE std::uint32_t load_acquire(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

PK_DEVICE std::uint64_t load_acquire(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

PK_DEVICE std::uint32_t add_shared(std::uint32_t at, std::uint32_t value) {
  std::uint32_t old;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(at), "r"(value) : "memory");
  return old;
}

// --- 16 bytes of global memory, this GPU's or a peer's ------------------------------------------------

PK_DEVICE uint4 load_piece(const void* at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

PK_DEVICE void store_piece(void* at, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Two 8-byte words, each of which arrives whole: 4 bytes of data and a flag. Nothing orders one word with
// another, and nothing needs to.
PK_DEVICE void store_flagged(void* at, std::uint32_t a, std::uint32_t b, std::uint32_t flag) {
  const std::uint64_t high = std::uint64_t(flag) << 32;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(high | a), "l"(high | b) : "memory");
}

// False until both words carry the flag.
PK_DEVICE bool load_flagged(const void* at, std::uint32_t flag, std::uint32_t& a, std::uint32_t& b) {
  std::uint64_t x, y;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(at) : "memory");
  a = std::uint32_t(x), b = std::uint32_t(y);
  return std::uint32_t(x >> 32) == flag && std::uint32_t(y >> 32) == flag;
}

// --- registers ---------------------------------------------------------------------------------------

// Gives registers of this warpgroup back, or takes more; executed by all its threads.
template <int N>
PK_DEVICE void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
PK_DEVICE void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// --- 8 x 8 matrices of 16-bit elements: four at a time, in the layout of wgmma's accumulators ----------

PK_DEVICE void load_matrices(std::uint32_t (&v)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(at)
               : "memory");
}

PK_DEVICE void store_matrices(std::uint32_t at, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

PK_DEVICE void load_pair(std::uint32_t (&v)[2], std::uint32_t at) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at) : "memory");
}

PK_DEVICE void store_pair(std::uint32_t at, const std::uint32_t (&v)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(v[0]), "r"(v[1]) : "memory");
}

}  // namespace pk::sm90
