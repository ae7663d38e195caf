// PK_KERNEL(K): makes a GPU kernel of K, and the functions through which a launcher uses it.
#pragma once

#include <pk/sm90/launch.h>

namespace pk::sm90 {

// What a launcher must know of a kernel.
struct description {
  std::int32_t abi, args_bytes, launch_bytes, control_bytes, failure_bytes;
  std::int32_t shared_bytes, threads, comm_sms, max_world;
  std::int32_t roles;  // bit 0 loader, 1 consumer, 2 storer, 3 communicator
  const char* name;
};

template <class K>
constexpr description describe(const char* name) {
  using P = plan<K>;
  return {abi_version, sizeof(typename K::args), sizeof(launch), sizeof(control), sizeof(failure),
          P::shared_bytes, P::threads, P::comm_sms, max_ranks,
          has_loader<K> | has_consumer<K> << 1 | has_storer<K> << 2 | has_communicator<K> << 3, name};
}

inline encode_function find_encode(const host_calls& calls) {
  if (calls.encode != nullptr) return reinterpret_cast<encode_function>(calls.encode);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  const cudaError_t e =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
  if (e != cudaSuccess || status != cudaDriverEntryPointSuccess)
    throw refusal("the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
  return reinterpret_cast<encode_function>(found);
}

// Runs K::setup: fills the arguments and the launch (but for timeout_ns and failures). 0, or 1 with a message.
template <class K>
int set_up(const host_calls& calls, void* args, launch& run, char* message, int message_bytes) {
  try {
    if (calls.abi != abi_version) throw refusal("the launcher and the kernel are of different versions of pk_runtime");
    if (calls.world < 1 || calls.world > max_ranks || calls.rank < 0 || calls.rank >= calls.world)
      throw refusal("there are at most " + std::to_string(max_ranks) + " ranks, numbered from 0");
    if (reinterpret_cast<std::uintptr_t>(args) % alignof(typename K::args) != 0)
      throw refusal("the arguments must start at a multiple of 128 bytes");
    run = {};
    run.rank = calls.rank, run.world = calls.world;
    host_state state{calls, run};
    if (!calls.plan) state.encode = find_encode(calls);
    for (int r = 0; r < calls.world; ++r)
      run.controls[r] = static_cast<control*>(find_memory(state, "control", "", r, sizeof(control)));
    host h(state);
    K::setup(h, *new (args) typename K::args());
    return 0;
  } catch (const std::exception& problem) {
    std::snprintf(message, std::size_t(message_bytes), "%s", problem.what());
    return 1;
  }
}

// Readies the kernel on the current device; how many of its blocks can be resident at once.
inline cudaError_t prepare(const void* kernel, const description& d, int* resident) {
  int device = 0, per_sm = 0, sms = 0;
  cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d.shared_bytes);
  if (e == cudaSuccess) e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (e == cudaSuccess)
    e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, d.threads, std::size_t(d.shared_bytes));
  *resident = sms * per_sm;
  return e;
}

// A cooperative launch is refused, instead of hanging, when its grid cannot be resident. Several ranks that
// share one GPU (tests) launch without.
inline cudaError_t start(const void* kernel, const description& d, cudaStream_t stream, int blocks, bool cooperative,
                         const void* args, const launch* run) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = cooperative;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(blocks)), config.blockDim = dim3(unsigned(d.threads));
  config.dynamicSmemBytes = std::size_t(d.shared_bytes), config.stream = stream;
  config.attrs = &attribute, config.numAttrs = 1;
  void* parameters[] = {const_cast<void*>(args), const_cast<launch*>(run)};
  return cudaLaunchKernelExC(&config, kernel, parameters);
}

}  // namespace pk::sm90

#ifdef PK_TRACE
#define PK_TRACE_ENTRY extern "C" int pk_trace(void* to, std::size_t bytes) { return pk::sm90::read_trace(to, bytes); }
#else
#define PK_TRACE_ENTRY
#endif

#define PK_KERNEL(K)                                                                                                   \
  PK_TRACE_ENTRY                                                                                                       \
  extern "C" __global__ void __launch_bounds__(pk::sm90::plan<K>::threads, 1)                                          \
      pk_kernel(const __grid_constant__ K::args g, const __grid_constant__ pk::sm90::launch l) {                       \
    pk::sm90::run<K>(g, l);                                                                                            \
  }                                                                                                                    \
  extern "C" const pk::sm90::description pk_description = pk::sm90::describe<K>(#K);                                   \
  extern "C" int pk_setup(const pk::sm90::host_calls* calls, void* args, pk::sm90::launch* run, char* message,         \
                          int message_bytes) {                                                                         \
    return pk::sm90::set_up<K>(*calls, args, *run, message, message_bytes);                                            \
  }                                                                                                                    \
  extern "C" int pk_prepare(int* resident) {                                                                           \
    return int(pk::sm90::prepare(reinterpret_cast<const void*>(&pk_kernel), pk_description, resident));                \
  }                                                                                                                    \
  extern "C" int pk_launch(cudaStream_t stream, int blocks, int cooperative, const void* args,                         \
                           const pk::sm90::launch* run) {                                                              \
    return int(pk::sm90::start(reinterpret_cast<const void*>(&pk_kernel), pk_description, stream, blocks,              \
                               cooperative != 0, args, run));                                                          \
  }
