// Microbenchmarks of one node's GPUs, and C functions that start them. One process drives all GPUs.
//
// Nothing here allocates behind the caller's back, every wait for another block or GPU is bounded, and a wait that
// runs out writes to `status` (host memory) and ends its kernel. Times are taken by the caller, with events.
#include <cuda_runtime.h>

#include <cstdint>

#include "probe_latencies.cuh"
#include "probe_transfers.cuh"

namespace {

__global__ void empty_kernel() {}

__global__ void spin_kernel(std::uint64_t duration_ns) {
  const std::uint64_t start = now_ns();
  while (now_ns() - start < duration_ns) __nanosleep(200);
}

}  // namespace

// Each returns a CUDA error code, 0 for success.
extern "C" {

int probe_transfer_bytes() { return int(sizeof(transfer)); }

const char* probe_error(int code) { return cudaGetErrorString(cudaError_t(code)); }

int probe_enable_peer(int device, int peer) {
  if (int error = cudaSetDevice(device)) return error;
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) return error;
  cudaGetLastError();  // this one is no error, and must not be taken for a later call's
  return cudaSuccess;
}

// Host memory that every GPU can write to: one word.
int probe_allocate_status(std::int32_t** status) {
  if (int error = cudaHostAlloc(reinterpret_cast<void**>(status), 64, cudaHostAllocPortable | cudaHostAllocMapped)) return error;
  **status = 0;
  return cudaSuccess;
}

int probe_copy(int device, void* to, int to_device, const void* from, int from_device, std::uint64_t bytes, int times,
               cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  for (int i = 0; i < times; ++i) {
    const cudaError_t error = to_device == from_device
                                  ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)
                                  : cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    if (error) return error;
  }
  return cudaSuccess;
}

int probe_transfer(const transfer* t, cudaStream_t stream) {
  if (int error = cudaSetDevice(t->device)) return error;
  if (std::uint64_t(t->chunk) * t->blocks > t->window) return cudaErrorInvalidValue;
  if (t->peers < 1 || t->peers > max_peers || t->blocks < 1 || t->chunk < 16 || t->chunk % 16 || t->window % t->chunk)
    return cudaErrorInvalidValue;
  switch (t->kind) {
    case plain_copy: return start_transfer(copy_kernel, copy_threads, *t, 0, stream);
    case bulk_push: return start_push<false>(*t, stream);
    case bulk_add: return start_push<true>(*t, stream);
    case bulk_pull:
      if (t->in_flight < 1 || t->in_flight > 64) return cudaErrorInvalidValue;
      return start_transfer(pull_kernel, 32, *t, t->in_flight * t->chunk, stream);
    default: return cudaErrorInvalidValue;
  }
}

int probe_ping(int device, int how, std::uint32_t* own, std::uint32_t* other, int first, std::uint32_t from, int rounds,
               std::int32_t* status, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  if (how == add_system)
    ping_kernel<add_system><<<1, 1, 0, stream>>>(own, other, first, from, rounds, status);
  else
    ping_kernel<store_system><<<1, 1, 0, stream>>>(own, other, first, from, rounds, status);
  return cudaGetLastError();
}

int probe_local_ping(int device, std::uint32_t* flags, std::uint32_t from, int rounds, std::int32_t* status,
                     cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  if (int error = allow_shared(local_ping_kernel, exclusive_bytes)) return error;
  local_ping_kernel<<<2, 1, exclusive_bytes, stream>>>(flags, from, rounds, status);
  return cudaGetLastError();
}

int probe_barrier(int device, std::uint32_t* const* slots, int rank, int world, std::uint32_t from, int rounds,
                  std::int32_t* status, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  if (world < 1 || world > max_peers) return cudaErrorInvalidValue;
  ranks all = {};
  for (int r = 0; r < world; ++r) all.slots[r] = slots[r];
  barrier_kernel<<<1, 32, 0, stream>>>(all, rank, world, from, rounds, status);
  return cudaGetLastError();
}

int probe_mbarrier(int device, int rounds, std::int32_t* status, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  mbarrier_kernel<<<1, 64, 0, stream>>>(rounds, status);
  return cudaGetLastError();
}

int probe_chase(int device, const std::uint32_t* next, int steps, std::uint32_t* place, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  chase_kernel<<<1, 1, 0, stream>>>(next, steps, place);
  return cudaGetLastError();
}

int probe_read(int device, const void* data, std::uint64_t bytes, int rounds, int blocks, int* result, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  read_kernel<<<blocks, 1024, 0, stream>>>(static_cast<const int4*>(data), bytes / 16, rounds, result);
  return cudaGetLastError();
}

int probe_spin(int device, std::uint64_t duration_ns, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  spin_kernel<<<1, 1, 0, stream>>>(duration_ns);
  return cudaGetLastError();
}

int probe_empty(int device, int blocks, int threads, int launches, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  for (int i = 0; i < launches; ++i) empty_kernel<<<blocks, threads, 0, stream>>>();
  return cudaGetLastError();
}

// A graph of `nodes` empty kernels, one after the other.
int probe_graph(int device, int blocks, int threads, int nodes, cudaStream_t stream, cudaGraphExec_t* result) {
  if (int error = cudaSetDevice(device)) return error;
  cudaGraph_t graph;
  if (int error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed)) return error;
  const int launched = probe_empty(device, blocks, threads, nodes, stream);
  if (int error = cudaStreamEndCapture(stream, &graph)) return error;
  if (launched) return launched;
  if (int error = cudaGraphInstantiate(result, graph, 0)) return error;
  return cudaGraphDestroy(graph);
}

int probe_graph_launch(int device, cudaGraphExec_t graph, cudaStream_t stream) {
  if (int error = cudaSetDevice(device)) return error;
  return cudaGraphLaunch(graph, stream);
}

int probe_graph_free(cudaGraphExec_t graph) { return cudaGraphExecDestroy(graph); }

}  // extern "C"
