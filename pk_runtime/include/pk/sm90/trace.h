// A timeline of a launch, recorded on the GPU: when roles begin and end, wait and signal. Only in kernels built with
// -DPK_TRACE; without it PK_MARK is nothing and the kernel is the same to the last instruction.
//
// A few blocks are recorded, into memory of the kernel's own module: the first two and the last two, which are
// communicators where there are some. Every launch begins anew; what does not fit is counted and left out.
#pragma once

#include <pk/sm90/state.h>

#ifndef PK_TRACE
#define PK_MARK(...)
#else
#define PK_MARK(...) ::pk::sm90::mark(__VA_ARGS__)

namespace pk::sm90 {

// What happened. `detail` of a wait is its failure_kind.
enum class moment : std::uint32_t { role_begins, role_ends, wait_begins, wait_ends, signals };

struct trace_record {
  std::uint64_t at;  // ns, of the GPU's global timer
  std::uint32_t what, detail;
};

struct trace_buffer {
  static constexpr int version = 1, slots = 4, roles = 4, most = 8192;
  std::int32_t block[slots];
  std::uint32_t seen[slots][roles];  // also of what was left out
  trace_record records[slots][roles][most];
};

static __device__ trace_buffer trace_memory;

// Number of the buffer's part that this block writes, or -1.
PK_DEVICE int trace_slot() {
  const int block = int(blockIdx.x), behind = int(gridDim.x) - 1 - block;
  return block < 2 ? block : behind < 2 ? 3 - behind : -1;
}

// By one thread of a role, `thread`; others that call do nothing. `count` is the role's own, in shared memory.
PK_DEVICE void mark_at(role which, int thread, std::uint32_t (&count)[4], moment what, std::uint32_t detail) {
  const int slot = trace_slot(), of = int(which);
  if (slot < 0 || of < 0 || of >= trace_buffer::roles || int(threadIdx.x) != thread) return;
  const std::uint32_t n = count[of]++;
  trace_memory.block[slot] = int(blockIdx.x);
  trace_memory.seen[slot][of] = n + 1;
  if (n < trace_buffer::most) trace_memory.records[slot][of][n] = {global_time(), std::uint32_t(what), detail};
}

// For the host: what the last launch recorded. 0, or CUDA's error.
inline int read_trace(void* to, std::size_t bytes) {
  if (bytes != sizeof(trace_buffer)) return int(cudaErrorInvalidValue);
  return int(cudaMemcpyFromSymbol(to, trace_memory, bytes));
}

}  // namespace pk::sm90
#endif
