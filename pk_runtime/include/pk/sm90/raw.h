// Raw candidates: an author's own kernels on pointers, behind the C interface that PK_KERNEL makes (entry.h).
//
// An author writes `args`, a setup() that binds them by name, and a launch() that starts kernels. The device
// part below is what is hard to get right by hand: the ends of a launch, flags, and waits that end.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <new>
#include <type_traits>

#include <pk/sm90/entry.h>

namespace pk::sm90 {
template <> inline constexpr dtype dtype_of<__nv_bfloat16> = dtype::bf16;
template <> inline constexpr dtype dtype_of<__half> = dtype::fp16;
}  // namespace pk::sm90

namespace pk::raw {

// One rank's tensor: `planes` of `rows` x `cols` elements, plane after plane, `pitch` elements from row to row.
// Rows start at multiples of 16 bytes; what lies between `cols` and `pitch` may be read, not written.
template <class T>
struct tensor {
  T* data = nullptr;
  int planes = 0, rows = 0, cols = 0;
  std::int64_t pitch = 0;
};

// The same tensor on every rank, as this rank reaches it. Shapes and pitches are equal on all ranks.
template <class T>
struct peer_tensor {
  T* at[max_ranks] = {};
  int planes = 0, rows = 0, cols = 0;
  std::int64_t pitch = 0;
  __host__ __device__ T* operator[](int rank) const { return at[rank]; }
};

// `count` elements on every rank: zero before the first launch, never touched by the runtime afterwards.
template <class T>
struct memory {
  T* at[max_ranks] = {};
  std::int64_t count = 0;
  int id = -1;
  __host__ __device__ T* operator[](int rank) const { return at[rank]; }
};

using flags = memory<std::uint32_t>;

// --- on the GPU -----------------------------------------------------------------------------------------

// One per rank in symmetric memory, zeroed once. Counters only grow.
struct control {
  std::uint32_t epoch;                            // launches of this rank that are complete
  std::uint32_t blocks_left;                      // of the launch that runs; back to 0 at its end
  alignas(128) std::uint32_t entered[max_ranks];  // [r]: launches that rank r has entered
  alignas(128) std::uint32_t left[max_ranks];     // [r]: launches that rank r has left
};

// Who runs: a parameter of every kernel, passed by value.
class self {
 public:
  self(const sm90::launch& run, int records) : run_(run), records_(records) {}
  PK_FN int rank() const { return run_.rank; }
  PK_FN int world() const { return run_.world; }
  // How many launches came before this one: the same in all blocks until they leave, lives in device memory,
  // so that a replayed graph counts too.
  PK_DEVICE std::uint32_t epoch() const { return sm90::load_acquire(&control_of(rank()).epoch); }

  PK_DEVICE control& control_of(int rank) const { return *reinterpret_cast<control*>(run_.controls[rank]); }
  PK_DEVICE std::uint64_t timeout_ns() const { return run_.timeout_ns; }

  // Ends this GPU's kernel with a record of why; `describe` fills in its part of it. The role behind the last
  // one is a raw kernel.
  template <class Describe>
  PK_DEVICE void stop(sm90::failure_kind kind, Describe describe) const {
    if (run_.failures != nullptr) {
      sm90::failure& f = run_.failures[block() % records_ * 4];
      f.rank = rank(), f.block = block(), f.role = int(sm90::role::none) + 1, f.epoch = int(epoch());
      describe(f);
      __threadfence_system();
      f.kind = int(kind);  // last: a record with a kind is whole
      __threadfence_system();
    }
    asm volatile("trap;");
    __builtin_unreachable();
  }
  PK_DEVICE static int block() {
    return int(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  }
  PK_DEVICE static int blocks() { return int(gridDim.x * gridDim.y * gridDim.z); }
  PK_DEVICE static int thread() {
    return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  }
  PK_DEVICE static int threads() { return int(blockDim.x * blockDim.y * blockDim.z); }

 private:
  sm90::launch run_;
  int records_;  // blocks that have room for a record
};

// Until *counter >= wanted, as a signed difference. Acquires. One thread.
PK_DEVICE void await(const self& self, sm90::failure_kind kind, int object, int slot, const std::uint32_t* counter,
                     std::uint32_t wanted) {
  std::uint32_t seen = sm90::load_acquire(counter);
  const std::uint64_t start = sm90::global_time();
  while (std::int32_t(seen - wanted) < 0) {
    const std::uint64_t waited = sm90::global_time() - start;
    if (waited > self.timeout_ns())
      self.stop(kind, [=](sm90::failure& f) {
        f.object = object, f.slot = slot, f.seen = seen, f.wanted = wanted, f.waited_ns = waited;
      });
    seen = sm90::load_acquire(counter);
  }
}

PK_DEVICE void check_slot(const self& self, const flags& f, int rank, int slot) {
  if (unsigned(rank) < unsigned(self.world()) && std::uint64_t(slot) < std::uint64_t(f.count)) return;
  self.stop(sm90::failure_kind::out_of_range, [&](sm90::failure& r) { r.object = f.id, r.slot = slot, r.plane = rank; });
}

// Adds one to flag `slot` of `rank`. One thread; what it stored before has arrived when the flag has, and what
// its block stored before too, if a __syncthreads() lies between.
PK_DEVICE void signal_release(const self& self, const flags& f, int rank, int slot) {
  check_slot(self, f, rank, slot);
  sm90::add_release(f[rank] + slot, 1u);
}

// Returns when this rank's own flag `slot` is at least `value`, and what its signallers stored before is
// visible to this thread; to its block after a __syncthreads(). A wait that runs out ends the kernel and is
// reported. Flags are never reset: `value` counts from the first launch on, see self.epoch().
PK_DEVICE void wait_at_least(const self& self, const flags& f, int slot, std::uint32_t value) {
  check_slot(self, f, self.rank(), slot);
  await(self, sm90::failure_kind::signal, f.id, slot, f[self.rank()] + slot, value);
}

// Enters a launch: every thread of every block, once. Returns self.epoch() when every rank is inside: then
// its inputs are there and its outputs may be written.
PK_DEVICE std::uint32_t enter(const self& self) {
  const std::uint32_t epoch = self.epoch();
  for (int r = self.thread(); r < self.world() && self.block() == 0; r += self.threads())
    sm90::add_release(&self.control_of(r).entered[self.rank()], 1u);
  for (int r = self.thread(); r < self.world(); r += self.threads())
    await(self, sm90::failure_kind::peers_to_enter, -1, r, &self.control_of(self.rank()).entered[r], epoch + 1);
  __syncthreads();
  return epoch;
}

// The last block counts the launch; `together`: once every rank has come here.
PK_DEVICE void finish(const self& self, bool together) {
  __syncthreads();
  if (self.thread() != 0) return;
  control& own = self.control_of(self.rank());
  const std::uint32_t next = self.epoch() + 1, last = std::uint32_t(self.blocks()) - 1;
  std::uint32_t before;
  asm volatile("atom.acq_rel.sys.global.inc.u32 %0, [%1], %2;"  // 0, 1, ... last, 0
               : "=r"(before)
               : "l"(&own.blocks_left), "r"(last)
               : "memory");
  if (before != last) return;
  if (together) {
    sm90::fence_system();
    for (int r = 0; r < self.world(); ++r) sm90::add_relaxed(&self.control_of(r).left[self.rank()], 1u);
    for (int r = 0; r < self.world(); ++r)
      await(self, sm90::failure_kind::peers_to_leave, -1, r, &own.left[r], next);
  }
  own.epoch = next;
}

// Ends a launch: every thread of every block, once, as the last thing. The kernel is complete when every rank
// has come here: nobody reads its inputs or writes its outputs any more.
PK_DEVICE void leave(const self& self) { finish(self, true); }

// The same without waiting for the peers: for kernels that know by their own flags that nobody reads their
// inputs or writes their outputs any more.
PK_DEVICE void close(const self& self) { finish(self, false); }

// --- on the host ----------------------------------------------------------------------------------------

// Binds arguments to the problem's tensors by name, and asks for symmetric memory.
class host {
 public:
  explicit host(sm90::host_state& state) : state_(state) {}
  int rank() const { return state_.calls.rank; }
  int world() const { return state_.calls.world; }

  template <class T> void input(const char* name, tensor<const T>& t) { one(name, t, false); }
  template <class T> void output(const char* name, tensor<T>& t) { one(name, t, true); }
  // Peers read the input, or write the output: between enter() and leave().
  template <class T> void input(const char* name, peer_tensor<const T>& t) { all(name, t, false); }
  template <class T> void output(const char* name, peer_tensor<T>& t) { all(name, t, true); }

  // `count` elements on every rank, zeroed once.
  template <class T>
  void scratch(const char* name, memory<T>& m, std::int64_t count) { symmetric("scratch", name, m, count); }
  // `count` flags on every rank. A report of a wait names them.
  void signals(const char* name, flags& f, int count) { symmetric("signals", name, f, count); }

  // Refuses the launch with `message` unless `holds`.
  void require(bool holds, const char* message) {
    if (!holds) throw sm90::refusal(std::string("the kernel refuses these shapes: ") + message);
  }

 private:
  int add(const char* kind, const char* name) {
    state_.calls.bound(state_.calls.context, state_.objects, kind, name);
    return state_.objects++;
  }
  template <class T>
  sm90::tensor_info find(const char* name, int rank, bool output, bool peers) {
    using element = std::remove_const_t<T>;
    constexpr sm90::dtype type = sm90::dtype_of<element>;
    static_assert(type != sm90::dtype::i32 || std::is_same_v<element, std::int32_t>,
                  "tensors hold __nv_bfloat16, __half, float or int");
    return sm90::find_tensor(state_, name, rank, output, peers, type, {});
  }
  template <class Tensor>
  void shape(Tensor& t, const sm90::tensor_info& found) {
    t.planes = found.planes, t.rows = found.rows, t.cols = found.cols, t.pitch = found.pitch;
  }
  template <class T>
  void one(const char* name, tensor<T>& t, bool output) {
    add("tensor", name);
    const sm90::tensor_info found = find<T>(name, rank(), output, false);
    t.data = static_cast<T*>(found.data);
    shape(t, found);
  }
  template <class T>
  void all(const char* name, peer_tensor<T>& t, bool output) {
    add("tensor", name);
    for (int r = 0; r < world(); ++r) {
      const sm90::tensor_info found = find<T>(name, r, output, true);
      if (r > 0 && found.pitch != t.pitch)
        throw sm90::refusal(std::string("tensor '") + name + "' has rows of different pitch on the ranks");
      t.at[r] = static_cast<T*>(found.data);
      shape(t, found);
    }
  }
  template <class T>
  void symmetric(const char* kind, const char* name, memory<T>& m, std::int64_t count) {
    if (count < 1) throw sm90::refusal(std::string(kind) + " '" + name + "' need at least one element");
    m.id = add(kind, name), m.count = count;
    for (int r = 0; r < world(); ++r)
      m.at[r] = static_cast<T*>(sm90::find_memory(state_, kind, name, r, std::uint64_t(count) * sizeof(T)));
    state_.run.symmetric = 1;
  }
  sm90::host_state& state_;
};

struct launch_failed {
  cudaError_t error;
};

// One launch on one rank: what launch() needs to start kernels.
struct call {
  cudaStream_t stream;
  int blocks;        // one an SM; the same on every rank
  bool cooperative;  // false only where ranks share a GPU
  raw::self self;
};

template <class...> struct types {};

// Starts a kernel whose blocks wait for each other or for peers: refused, instead of hanging, if they cannot
// all be resident. Other kernels may have any grid: kernel<<<grid, threads, shared, at.stream>>>(...).
template <class... Parameters, class... Arguments>
void start(const call& at, void (*kernel)(Parameters...), dim3 grid, dim3 threads, int shared_bytes,
           const Arguments&... arguments) {
  static_assert(std::is_same_v<types<std::remove_cv_t<Parameters>...>, types<Arguments...>>,
                "raw::start takes one argument for each parameter of the kernel, of exactly its type");
  const auto function = reinterpret_cast<const void*>(kernel);
  const cudaError_t allowed = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (allowed != cudaSuccess) throw launch_failed{allowed};
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = at.cooperative;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = threads;
  config.dynamicSmemBytes = std::size_t(shared_bytes), config.stream = at.stream;
  config.attrs = &attribute, config.numAttrs = 1;
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
  const cudaError_t started = cudaLaunchKernelExC(&config, function, pointers);
  if (started != cudaSuccess) throw launch_failed{started};
}

// --- the C interface -------------------------------------------------------------------------------------

// Fills the arguments and the launch (but for timeout_ns and failures). 0, or 1 with a message.
template <class K>
int set_up(const sm90::host_calls& calls, void* args, sm90::launch& run, char* message, int message_bytes) {
  try {
    if (calls.abi != sm90::abi_version)
      throw sm90::refusal("the launcher and the kernel are of different versions of pk_runtime");
    if (calls.world < 1 || calls.world > max_ranks || calls.rank < 0 || calls.rank >= calls.world)
      throw sm90::refusal("there are at most " + std::to_string(max_ranks) + " ranks, numbered from 0");
    if (reinterpret_cast<std::uintptr_t>(args) % alignof(typename K::args) != 0)
      throw sm90::refusal("the arguments must start at a multiple of 128 bytes");
    run = {};
    run.rank = calls.rank, run.world = calls.world;
    sm90::host_state state{calls, run};
    for (int r = 0; r < calls.world; ++r)
      run.controls[r] =
          reinterpret_cast<sm90::control*>(sm90::find_memory(state, "control", "", r, sizeof(control)));
    host h(state);
    K::setup(h, *new (args) typename K::args());
    return 0;
  } catch (const std::exception& problem) {
    std::snprintf(message, std::size_t(message_bytes), "%s", problem.what());
    return 1;
  }
}

// One block of any kernel is resident on every SM.
inline int prepare(int* resident) {
  int device = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(resident, cudaDevAttrMultiProcessorCount, device);
  return int(e);
}

template <class K>
int start_all(cudaStream_t stream, int blocks, bool cooperative, const void* args, const sm90::launch& run) {
  try {
    cudaGetLastError();  // what somebody else left
    K::launch(*static_cast<const typename K::args*>(args), call{stream, blocks, cooperative, {run, blocks}});
    return int(cudaGetLastError());
  } catch (const launch_failed& failed) {
    return int(failed.error);
  }
}

}  // namespace pk::raw

#define PK_RAW(K)                                                                                                     \
  extern "C" const pk::sm90::description pk_description = {pk::sm90::abi_version,                                     \
                                                           sizeof(K::args),                                           \
                                                           sizeof(pk::sm90::launch),                                  \
                                                           sizeof(pk::raw::control),                                  \
                                                           sizeof(pk::sm90::failure),                                 \
                                                           0, 0, 0, pk::max_ranks, 0, #K};                            \
  extern "C" int pk_setup(const pk::sm90::host_calls* calls, void* args, pk::sm90::launch* run, char* message,        \
                          int message_bytes) {                                                                        \
    return pk::raw::set_up<K>(*calls, args, *run, message, message_bytes);                                            \
  }                                                                                                                   \
  extern "C" int pk_prepare(int* resident) { return pk::raw::prepare(resident); }                                     \
  extern "C" int pk_launch(cudaStream_t stream, int blocks, int cooperative, const void* args,                        \
                           const pk::sm90::launch* run) {                                                             \
    return pk::raw::start_all<K>(stream, blocks, cooperative != 0, args, *run);                                       \
  }
