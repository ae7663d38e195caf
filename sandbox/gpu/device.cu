// What the judge itself runs on a GPU beside a kernel: a delay, and a meeting of all ranks.
//
// Built once as a library; runners use it to make ranks late and to start iterations together, workers
// to time the baseline in the same way. Both are asynchronous and may be captured in a CUDA graph.
#include <cstdint>

#include <cuda_runtime.h>

namespace {

constexpr int max_ranks = 32;
constexpr int meetings = max_ranks;  // own[meetings]: how many this rank has held

struct peers {
  std::uint32_t* at[max_ranks];
};

__device__ std::uint64_t now_ns() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ void add_release(std::uint32_t* at) {
  asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

__device__ std::uint32_t load_acquire(const std::uint32_t* at) {
  std::uint32_t seen;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(at) : "memory");
  return seen;
}

__global__ void delay(std::uint64_t ns) {
  const std::uint64_t start = now_ns();
  while (now_ns() - start < ns) __nanosleep(200);
}

// Thread r tells rank r and waits for it. A rank that never comes is not waited for beyond `timeout_ns`:
// what follows must not depend on the meeting.
__global__ void meet(peers p, int rank, int world, std::uint64_t timeout_ns) {
  const int r = int(threadIdx.x);
  std::uint32_t* const own = p.at[rank];
  const std::uint32_t wanted = own[meetings] + 1;
  __syncthreads();
  if (r < world) {
    add_release(&p.at[r][rank]);
    const std::uint64_t start = now_ns();
    while (std::int32_t(load_acquire(&own[r]) - wanted) < 0 && now_ns() - start < timeout_ns) {
    }
  }
  __syncthreads();
  if (r == 0) own[meetings] = wanted;
}

}  // namespace

extern "C" int judge_delay(cudaStream_t stream, std::uint64_t ns) {
  delay<<<1, 1, 0, stream>>>(ns);
  return int(cudaGetLastError());
}

// counters[r]: 64 words in rank r's memory, zeroed before any rank meets, the same for all meetings.
extern "C" int judge_meet(cudaStream_t stream, void* const* counters, int rank, int world, std::uint64_t timeout_ns) {
  if (world < 1 || world > max_ranks || rank < 0 || rank >= world) return int(cudaErrorInvalidValue);
  peers p = {};
  for (int r = 0; r < world; ++r) p.at[r] = static_cast<std::uint32_t*>(counters[r]);
  meet<<<1, max_ranks, 0, stream>>>(p, rank, world, timeout_ns);
  return int(cudaGetLastError());
}
