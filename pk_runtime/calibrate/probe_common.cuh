// What the probes share: constants, the clock, bounded waits.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int max_peers = 8;
constexpr int copy_threads = 1024, copy_unroll = 8;
constexpr std::uint64_t wait_limit_ns = 2'000'000'000;
constexpr int exclusive_bytes = 160 << 10;  // of shared memory: a block has its SM to itself

__device__ std::uint64_t now_ns() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ void give_up(std::int32_t* status, int what) {
  *reinterpret_cast<volatile std::int32_t*>(status) = what;
  __threadfence_system();
}

// A clock that is read rarely, so that it does not show in the times.
struct deadline {
  std::uint64_t start = 0;
  unsigned polls = 0;
  __device__ bool passed() {
    if (++polls & 1023) return false;
    if (start == 0) start = now_ns();
    return now_ns() - start > wait_limit_ns;
  }
};

__device__ std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

__device__ bool arrived(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done;
}

__device__ bool await_barrier(std::uint64_t* barrier, std::uint32_t parity, std::int32_t* status) {
  deadline limit;
  while (!arrived(barrier, parity))
    if (limit.passed()) return give_up(status, 2), false;
  return true;
}

__device__ void init_barrier(std::uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

template <class Kernel>
int allow_shared(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace
