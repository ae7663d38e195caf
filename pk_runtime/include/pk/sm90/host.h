// The host side of a launch: binds a kernel's arguments to the problem's tensors by name, and encodes
// their tensor maps. The launcher (another program, through a C interface) answers for memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include <pk/sm90/mailbox.h>
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
  std::int32_t dims[8];    // as the caller has them, in order; 0 after the last
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

// Merges trailing dimensions, splits rows into planes and columns into parts, as the author asked.
inline void apply(const view& v, tensor_info& t, const std::string& text) {
  const std::int64_t rows = std::int64_t(t.planes) * t.rows;
  if (v.cols > 0) {
    if (v.cols != t.cols && t.pitch != t.cols) throw refusal(text + " has padding between its rows, so that they cannot be merged");
    if (rows * t.cols % v.cols != 0)
      throw refusal(text + " has " + std::to_string(rows * t.cols) + " elements, which are not whole rows of " +
                    std::to_string(v.cols));
    if (v.cols != t.cols) t.pitch = v.cols;
    t.planes = 1, t.rows = int(rows * t.cols / v.cols), t.cols = v.cols;
  }
  if (v.planes > 0) {
    const int all = t.planes * t.rows;
    if (all % v.planes != 0)
      throw refusal(text + " has " + std::to_string(all) + " rows, which do not split into " +
                    std::to_string(v.planes) + " equal planes");
    t.planes = v.planes, t.rows = all / v.planes;
  }
  if (v.parts < 1 || v.parts > max_ranks || v.part < 0 || v.part >= v.parts)
    throw refusal(text + " is bound by part " + std::to_string(v.part) + " of " + std::to_string(v.parts) +
                  ": parts are 1 to " + std::to_string(max_ranks) + ", numbered from 0");
  if (v.parts == 1) return;
  const int size = element_bytes(dtype(t.type));
  if (t.cols % v.parts != 0 || t.cols / v.parts * size % 16 != 0)
    throw refusal(text + " has " + std::to_string(t.cols) + " columns, which do not split into " +
                  std::to_string(v.parts) + " equal parts of a multiple of 16 bytes");
  t.cols /= v.parts;
  if (t.data != nullptr) t.data = static_cast<char*>(t.data) + std::int64_t(v.part) * t.cols * size;
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
                               const view& v) {
  tensor_info t = {};
  const auto found = answer(h.calls.tensor(h.calls.context, name, rank, output, peers, &t));
  const std::string text = std::string("tensor '") + name + "'";
  if (found == answer::unknown) throw refusal("the problem has no " + text);
  if (found == answer::other_direction)
    throw refusal(text + (output ? " is an input of the problem, not an output"
                                 : " is an output of the problem, not an input"));
  if (dtype(t.type) != type)
    throw refusal(text + " holds " + name_of(dtype(t.type)) + ", and the kernel binds it as " + name_of(type));
  apply(v, t, text);
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

  // Size of dimension i of the problem's tensor, counted from 0.
  int dim(const char* name, int i) const {
    sm90::tensor_info t = {};
    const auto ask = [&](int output) {
      return sm90::answer(state_.calls.tensor(state_.calls.context, name, rank(), output, false, &t));
    };
    if (ask(false) == sm90::answer::other_direction) ask(true);
    if (i < 0 || i >= int(sizeof t.dims / sizeof t.dims[0]) || t.dims[i] < 1)
      throw sm90::refusal(std::string("tensor '") + name + "' has no dimension " + std::to_string(i));
    return t.dims[i];
  }

  // Binds this rank's tensor. `planes` splits its rows into that many equal planes.
  template <class T> void input(const char* name, layout<T>& l, int planes = 0) { one(name, l, false, {planes}); }
  template <class T> void output(const char* name, layout<T>& l, int planes = 0) { one(name, l, true, {planes}); }
  template <class T> void input(const char* name, layout<T>& l, view v) { one(name, l, false, v); }
  template <class T> void output(const char* name, layout<T>& l, view v) { one(name, l, true, v); }

  // Binds the tensor of every rank: peers read the input, peers write the output. The launch then starts
  // and ends with a barrier over all ranks, because the memory is the caller's.
  template <class T> void input(const char* name, parallel_layout<T>& l, int planes = 0) { all(name, l, false, {planes}); }
  template <class T> void output(const char* name, parallel_layout<T>& l, int planes = 0) { all(name, l, true, {planes}); }
  template <class T> void input(const char* name, parallel_layout<T>& l, view v) { all(name, l, false, v); }
  template <class T> void output(const char* name, parallel_layout<T>& l, view v) { all(name, l, true, v); }

  // Binds this rank's tensor in column parts: l[p] is part p of v.parts.
  template <class T>
  void input_parts(const char* name, parallel_layout<T>& l, view v) {
    const int id = add("tensor", name);
    for (v.part = 0; v.part < v.parts; ++v.part)
      set(l.peers[v.part], name, sm90::find_tensor(state_, name, rank(), false, false, sm90::dtype_of<T>, v), id);
    shape(l);
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
  // A box on every rank with `slots` slabs from every source.
  template <class Slab>
  void mailbox(const char* name, pk::mailbox<Slab>& m, int slots) {
    if (slots < 1) throw sm90::refusal(std::string("mailbox '") + name + "' needs at least one slot");
    m.id = add("mailbox", name), m.slots = slots;
    const std::uint64_t bytes = std::uint64_t(2) * world() * slots * m.slot_bytes;
    for (int r = 0; r < world(); ++r)
      m.boxes[r] = static_cast<unsigned char*>(sm90::find_memory(state_, "mailbox", name, r, bytes));
    state_.run.symmetric = 1;
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
    l.data = static_cast<T*>(t.data), l.pitch = t.pitch;
    sm90::encode(state_, l.map, name, t);
  }
  template <class T>
  void shape(parallel_layout<T>& l) {
    l.planes = l.peers[0].planes, l.rows = l.peers[0].rows, l.cols = l.peers[0].cols;
  }
  template <class T>
  void one(const char* name, layout<T>& l, bool output, const view& v) {
    const int id = add("tensor", name);
    set(l, name, sm90::find_tensor(state_, name, rank(), output, false, sm90::dtype_of<T>, v), id);
  }
  template <class T>
  void all(const char* name, parallel_layout<T>& l, bool output, const view& v) {
    const int id = add("tensor", name);
    for (int r = 0; r < world(); ++r)
      set(l.peers[r], name, sm90::find_tensor(state_, name, r, output, true, sm90::dtype_of<T>, v), id);
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
