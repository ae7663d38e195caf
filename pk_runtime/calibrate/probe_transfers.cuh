// Moving bytes between the memories of two GPUs, by plain loads and stores and by bulk copies.
#pragma once
#include <cuda_bf16.h>

#include "probe_common.cuh"

// What a block of a transfer does. Chunk i of block b goes between src[p] and dst[p], p = (i + b) % peers, at an offset
// that walks through `window` bytes. Runs `total` bytes, or for `duration_ns` if that is not 0.
struct transfer {
  std::int32_t kind, device, blocks, chunk, in_flight, peers;
  std::uint64_t window, total, duration_ns;
  char* dst[max_peers];
  const char* src[max_peers];
  unsigned long long* moved;  // bytes moved are added here, if not null
  std::int32_t* status;
};

namespace {

enum kind { plain_copy = 0, bulk_push = 1, bulk_add = 2, bulk_pull = 3 };

// Where a block is in its transfer. Counts up without divisions, which would take as long as issuing a chunk.
struct walk {
  const transfer& t;
  std::uint64_t number = 0, chunks, end_ns, step, offset;
  int peer;
  __device__ explicit walk(const transfer& t)
      : t(t),
        end_ns(t.duration_ns ? now_ns() + t.duration_ns : 0),
        step(std::uint64_t(t.chunk) * t.blocks),
        offset(std::uint64_t(t.chunk) * blockIdx.x),
        peer(int(blockIdx.x) % t.peers) {
    chunks = (t.total + step - 1) / step;
  }
  __device__ bool more() const { return t.duration_ns ? now_ns() < end_ns : number < chunks; }
  __device__ char* to() const { return t.dst[peer] + offset; }
  __device__ const char* from() const { return t.src[peer] + offset; }
  __device__ void advance() {
    ++number;
    if (++peer == t.peers) peer = 0;
    offset += step;
    if (offset >= t.window) offset -= t.window;
  }
  __device__ void report() const {
    if (t.moved) atomicAdd(t.moved, static_cast<unsigned long long>(number) * t.chunk);
  }
};

__device__ void copy_chunk(const walk& w) {
  const auto* from = reinterpret_cast<const int4*>(w.from());
  auto* to = reinterpret_cast<int4*>(w.to());
  const int pieces = w.t.chunk / 16;
  for (int at = threadIdx.x; at < pieces; at += copy_threads * copy_unroll) {
    int4 v[copy_unroll];
#pragma unroll
    for (int i = 0; i < copy_unroll; ++i)
      if (at + i * copy_threads < pieces) v[i] = __ldcs(from + at + i * copy_threads);
#pragma unroll
    for (int i = 0; i < copy_unroll; ++i)
      if (at + i * copy_threads < pieces) to[at + i * copy_threads] = v[i];
  }
}

__global__ void __launch_bounds__(copy_threads, 1) copy_kernel(const __grid_constant__ transfer t) {
  __shared__ int go_on;
  walk w(t);
  if (t.duration_ns) {
    for (;; w.advance()) {
      __syncthreads();
      if (threadIdx.x == 0) go_on = w.more();  // one clock decides for the block
      __syncthreads();
      if (!go_on) break;
      copy_chunk(w);
    }
  } else {
    for (; w.more(); w.advance()) copy_chunk(w);
  }
  if (threadIdx.x == 0) w.report();
}

// Small finite numbers: adding them again and again stays finite, and they are not zeros.
__device__ void fill(unsigned char* buffer, int bytes) {
  auto* words = reinterpret_cast<__nv_bfloat16*>(buffer);
  for (int i = threadIdx.x; i < bytes / 2; i += blockDim.x) words[i] = __float2bfloat16(i % 2 ? 0.001f : -0.001f);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}

// One lane pushes chunks out of shared memory; at most `depth` of them are still being read.
template <int depth, bool add>
__global__ void __launch_bounds__(32, 1) push_kernel(const __grid_constant__ transfer t) {
  extern __shared__ __align__(128) unsigned char stages[];
  fill(stages, depth * t.chunk);
  if (threadIdx.x) return;
  walk w(t);
  for (; w.more(); w.advance()) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(depth - 1) : "memory");
    const std::uint32_t from = shared_address(stages + w.number % depth * t.chunk);
    char* to = w.to();
    if constexpr (add)
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(to), "r"(from),
                   "r"(t.chunk)
                   : "memory");
    else
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(t.chunk)
                   : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  w.report();
}

// One lane pulls chunks into a ring of `in_flight` stages in shared memory; nobody reads them there.
__global__ void __launch_bounds__(32, 1) pull_kernel(const __grid_constant__ transfer t) {
  extern __shared__ __align__(128) unsigned char stages[];
  __shared__ std::uint64_t full[64];
  if (threadIdx.x) return;
  for (int i = 0; i < t.in_flight; ++i) init_barrier(full + i);
  asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
  walk w(t);
  int stage = 0;  // the next to fill; once around, also the one that was filled first
  std::uint32_t parity = 0;
  for (; w.more(); w.advance()) {
    if (w.number >= std::uint64_t(t.in_flight) && !await_barrier(full + stage, parity ^ 1, t.status)) return;
    const std::uint32_t barrier = shared_address(full + stage);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(t.chunk) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(stages + stage * t.chunk)),
                 "l"(w.from()), "r"(t.chunk), "r"(barrier)
                 : "memory");
    if (++stage == t.in_flight) stage = 0, parity ^= 1;
  }
  const std::uint64_t open = w.number < std::uint64_t(t.in_flight) ? w.number : t.in_flight;
  if (w.number < std::uint64_t(t.in_flight)) stage = 0, parity = 1;  // never went around
  for (std::uint64_t i = 0; i < open; ++i) {
    if (!await_barrier(full + stage, parity ^ 1, t.status)) return;
    if (++stage == t.in_flight) stage = 0, parity ^= 1;
  }
  w.report();
}

template <class Kernel>
int start_transfer(Kernel* kernel, int threads, const transfer& t, int stages, cudaStream_t stream) {
  const int bytes = stages > exclusive_bytes ? stages : exclusive_bytes;
  if (int error = allow_shared(kernel, bytes)) return error;
  kernel<<<t.blocks, threads, bytes, stream>>>(t);
  return cudaGetLastError();
}

template <bool add>
int start_push(const transfer& t, cudaStream_t stream) {
  const int bytes = t.in_flight * t.chunk;
  switch (t.in_flight) {
    case 1: return start_transfer(push_kernel<1, add>, 32, t, bytes, stream);
    case 2: return start_transfer(push_kernel<2, add>, 32, t, bytes, stream);
    case 4: return start_transfer(push_kernel<4, add>, 32, t, bytes, stream);
    case 8: return start_transfer(push_kernel<8, add>, 32, t, bytes, stream);
    case 16: return start_transfer(push_kernel<16, add>, 32, t, bytes, stream);
    case 32: return start_transfer(push_kernel<32, add>, 32, t, bytes, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace
