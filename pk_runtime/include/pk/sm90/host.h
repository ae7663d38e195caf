// The host side of a launch: binds a kernel's arguments to the problem's tensors by name, and encodes
// their tensor maps. The launcher (another program, through a C interface) answers for memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include <pk/sm90/layout.h>
#include <pk/sm90/signal.h>

namespace pk {
namespace sm90 {

static_assert(sizeof(tensor_map) == sizeof(CUtensorMap), "tensor_map stands for CUtensorMap");

// --- the C interface with the launcher ---------------------------------------------------------------

struct tensor_info {
  void* data;              // as this process maps it
  std::int32_t type;       // dtype
  std::int32_t planes, rows, cols;  // last dimension, the one before it, the product of the others
  std::int64_t pitch;      // elements from row to row; pitch * element size is a multiple of 16
};

enum class answer : int { found, unknown, other_direction };

struct host_calls {
  std::int32_t abi, rank, world;
  std::int32_t plan;  // 1: find out what is needed; nothing is encoded and addresses may be null
  void* context;
  // What `rank`'s tensor `name` is. `peers`: the pointer is used by every rank.
  std::int32_t (*tensor)(void* context, const char* name, std::int32_t rank, std::int32_t output, std::int32_t peers,
                         tensor_info* info);
  // `rank`'s copy of symmetric memory as this process maps it; zeroed before it is published to peers.
  void* (*memory)(void* context, const char* kind, const char* name, std::int32_t rank, std::uint64_t bytes);
  // Objects are numbered in the order of setup(); failure records name them so.
  void (*bound)(void* context, std::int32_t id, const char* kind, const char* name);
  void* encode;  // cuTensorMapEncodeTiled; null: asked of the CUDA runtime
};

// What setup() refuses, in words.
struct refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using encode_function = decltype(&cuTensorMapEncodeTiled);

struct host_state {
  const host_calls& calls;
  launch& run;
  encode_function encode = nullptr;
  int objects = 0;
};

inline int element_bytes(dtype t) { return t == dtype::fp32 || t == dtype::i32 ? 4 : 2; }

inline const char* name_of(dtype t) {
  static const char* const names[] = {"bf16", "fp16", "fp32", "i32"};
  return names[int(t)];
}

inline CUtensorMapDataType map_type(dtype t) {
  static const CUtensorMapDataType types[] = {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                              CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_INT32};
  return types[int(t)];
}

// A tensor in memory: planes of rows x cols elements, plane after plane.
inline void encode(host_state& h, tensor_map& map, const char* name, const tensor_info& t) {
  if (h.calls.plan) return;
  const int size = element_bytes(dtype(t.type));
  if (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0 || t.pitch * size % 16 != 0)
    throw refusal(std::string("tensor '") + name + "' must start at a multiple of 16 bytes, and so must its rows: "
                  "copy it into memory with padded rows");
  const cuuint64_t dims[] = {cuuint64_t(t.cols), cuuint64_t(t.rows), cuuint64_t(t.planes)};
  const cuuint64_t strides[] = {cuuint64_t(t.pitch) * size, cuuint64_t(t.pitch) * size * t.rows};
  const cuuint32_t box[] = {cuuint32_t(128 / size), 64, 1}, steps[] = {1, 1, 1};
  const CUresult result = h.encode(reinterpret_cast<CUtensorMap*>(&map), map_type(dtype(t.type)), 3, t.data, dims,
                                   strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw refusal(std::string("the driver makes no tensor map of '") + name + "' [" + std::to_string(t.planes) + ", " +
                  std::to_string(t.rows) + ", " + std::to_string(t.cols) + "]: error " + std::to_string(int(result)));
}

inline tensor_info find_tensor(host_state& h, const char* name, int rank, bool output, bool peers, dtype type,
                               int planes) {
  tensor_info t = {};
  const auto found = answer(h.calls.tensor(h.calls.context, name, rank, output, peers, &t));
  const std::string text = std::string("tensor '") + name + "'";
  if (found == answer::unknown) throw refusal("the problem has no " + text);
  if (found == answer::other_direction)
    throw refusal(text + (output ? " is an input of the problem, not an output"
                                 : " is an output of the problem, not an input"));
  if (dtype(t.type) != type)
    throw refusal(text + " holds " + name_of(dtype(t.type)) + ", and the kernel binds it as " + name_of(type));
  if (planes > 0) {
    const int rows = t.planes * t.rows;
    if (rows % planes != 0)
      throw refusal(text + " has " + std::to_string(rows) + " rows, which do not split into " +
                    std::to_string(planes) + " equal planes");
    t.planes = planes, t.rows = rows / planes;
  }
  if (peers) h.run.peers_bound = 1;
  return t;
}

inline void* find_memory(host_state& h, const char* kind, const char* name, int rank, std::uint64_t bytes) {
  void* at = h.calls.memory(h.calls.context, kind, name, rank, bytes);
  if (at == nullptr && !h.calls.plan)
    throw refusal(std::string("there is no symmetric memory for ") + kind + " '" + name + "' of " +
                  std::to_string(bytes) + " bytes");
  return at;
}

}  // namespace sm90

class host {
 public:
  explicit host(sm90::host_state& state) : state_(state) {}
  int rank() const { return state_.calls.rank; }
  int world() const { return state_.calls.world; }

  // Binds this rank's tensor. `planes` splits its rows into that many equal planes.
  template <class T> void input(const char* name, layout<T>& l, int planes = 0) { one(name, l, false, planes); }
  template <class T> void output(const char* name, layout<T>& l, int planes = 0) { one(name, l, true, planes); }

  // Binds the tensor of every rank: peers read the input, peers write the output. The launch then starts
  // and ends with a barrier over all ranks, because the memory is the caller's.
  template <class T> void input(const char* name, parallel_layout<T>& l, int planes = 0) {
    all(name, l, false, planes);
  }
  template <class T> void output(const char* name, parallel_layout<T>& l, int planes = 0) {
    all(name, l, true, planes);
  }

  // Symmetric memory that lives as long as the kernel object, two copies used by turns.
  template <class T>
  void scratch(const char* name, parallel_layout<T>& l, int planes, int rows, int cols) {
    if (planes < 1 || rows < 1 || cols < 1)
      throw sm90::refusal(std::string("scratch '") + name + "' has a dimension below 1");
    const int unit = 16 / int(sizeof(T)), id = add("scratch", name);
    const std::int64_t pitch = std::int64_t(ceil_div(cols, unit)) * unit;
    const std::uint64_t bytes = std::uint64_t(2) * planes * rows * pitch * sizeof(T);
    for (int r = 0; r < world(); ++r) {
      void* at = sm90::find_memory(state_, "scratch", name, r, bytes);
      // One map covers both copies, the second behind the first.
      set(l.peers[r], name, {at, int(sm90::dtype_of<T>), 2 * planes, rows, cols, pitch}, id);
      l.peers[r].planes = l.peers[r].alternates = planes;
    }
    shape(l);
    state_.run.symmetric = 1;
  }

  // `slots` counters per rank. A counter that is signalled at all gets exactly `per_launch` signals a launch.
  void signals(const char* name, pk::signals& s, int slots, int per_launch) {
    if (slots < 1 || per_launch < 1)
      throw sm90::refusal(std::string("signals '") + name + "' need at least one slot and one signal per launch");
    s.id = add("signals", name), s.slots = slots, s.per_launch = per_launch;
    counters("signals", name, s.counters, std::uint64_t(2) * slots);
  }
  void barrier(const char* name, barrier_state& b) {
    b.id = add("barrier", name);
    counters("barrier", name, b.counters, 1);
  }

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
  void set(layout<T>& l, const char* name, const sm90::tensor_info& t, int id) {
    l.planes = t.planes, l.rows = t.rows, l.cols = t.cols, l.id = id, l.alternates = 0;
    sm90::encode(state_, l.map, name, t);
  }
  template <class T>
  void shape(parallel_layout<T>& l) {
    l.planes = l.peers[0].planes, l.rows = l.peers[0].rows, l.cols = l.peers[0].cols;
  }
  template <class T>
  void one(const char* name, layout<T>& l, bool output, int planes) {
    const int id = add("tensor", name);
    set(l, name, sm90::find_tensor(state_, name, rank(), output, false, sm90::dtype_of<T>, planes), id);
  }
  template <class T>
  void all(const char* name, parallel_layout<T>& l, bool output, int planes) {
    const int id = add("tensor", name);
    for (int r = 0; r < world(); ++r)
      set(l.peers[r], name, sm90::find_tensor(state_, name, r, output, true, sm90::dtype_of<T>, planes), id);
    shape(l);
  }
  template <class Counter>
  void counters(const char* kind, const char* name, Counter* (&at)[max_ranks], std::uint64_t n) {
    for (int r = 0; r < world(); ++r)
      at[r] = static_cast<Counter*>(sm90::find_memory(state_, kind, name, r, n * sizeof(Counter)));
    state_.run.symmetric = 1;
  }
  sm90::host_state& state_;
};

}  // namespace pk
