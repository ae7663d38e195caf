// Slabs: tiles in registers as they lie in memory. They go between registers and the memory of any rank
// without shared memory. In the simulator a slab is whole in one fiber; its elements exist only where there
// is arithmetic, and are NaN until something is put there.
#pragma once

#include <cstring>
#include <vector>

#include <pk/sim/layout.h>

namespace pk {
namespace sim {

template <class T>
std::vector<T> unset_registers(int n) {
  std::vector<T> data(arithmetic() ? std::size_t(n) : 0);
  if (!data.empty()) std::memset(static_cast<void*>(data.data()), 0xff, data.size() * sizeof(T));
  return data;
}

}  // namespace sim

template <class T, int R, int C, int G = 2>
struct slab {
  static_assert(R > 0 && C > 0 && G >= 0, "a slab has rows and columns");
  static_assert(C * sizeof(T) % 16 == 0, "a row of a slab is a multiple of 16 bytes");
  static_assert(R * C * sizeof(T) % (16 * threads_of(G)) == 0,
                "a slab gives every thread of its group the same number of 16-byte pieces");
  using element = T;
  static constexpr int rows = R, cols = C, warpgroups = G;
  static constexpr int bytes = R * C * int(sizeof(T));
  std::vector<T> data = sim::unset_registers<T>(R * C);
  double ready_at = 0;  // when the load that fills it is complete

  sim::tile_ref ref() const { return {const_cast<T*>(data.data()), sim::dtype_of<T>, R, C}; }
};

// fp32 sums of slabs of that shape, element by element where those have theirs.
template <class T, int R, int C, int G = 2>
struct slab_sum {
  static_assert(R > 0 && C > 0 && G >= 0, "a sum has rows and columns");
  std::vector<float> data = sim::unset_registers<float>(R * C);
};

// v = src[at], zeros outside the plane.
template <class T, int R, int C, int G>
void load(group<G> self, slab<T, R, C, G>& v, const layout<T>& src, coord at) {
  v.ready_at = sim::slab_load(*self.f, v.ref(), src.ref, at);
}

// dst[at] = v. A later signal by the same worker publishes it.
template <class T, int R, int C, int G>
void store(group<G> self, const layout<T>& dst, coord at, const slab<T, R, C, G>& v) {
  sim::slab_use(*self.f, v.ready_at);
  sim::slab_store(*self.f, dst.ref, at, v.ref());
}

template <class T, int R, int C, int G>
void zero(slab_sum<T, R, C, G>& sum) {
  for (float& v : sum.data) v = 0.0f;
}

// sum += v.
template <class T, int R, int C, int G>
void accumulate(group<G> self, slab_sum<T, R, C, G>& sum, const slab<T, R, C, G>& v) {
  sim::slab_use(*self.f, v.ready_at);
  sim::vector_work(*self.f, R * C, 0);
  for (std::size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += float(v.data[i]);
}

// v = sum, rounded once.
template <class T, int R, int C, int G>
void convert(group<G> self, slab<T, R, C, G>& v, const slab_sum<T, R, C, G>& sum) {
  sim::vector_work(*self.f, R * C, 0);
  for (std::size_t i = 0; i < sum.data.size(); ++i) v.data[i] = T(sum.data[i]);
  v.ready_at = 0;
}

}  // namespace pk
