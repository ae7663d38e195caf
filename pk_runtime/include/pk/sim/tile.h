// Shared tiles and register tiles of the simulator half. A register tile is whole in one fiber; its
// storage exists only where there is arithmetic.
#pragma once

#include <math.h>

#include <memory>

#include <pk/sim/types.h>
#include <pk/sim/worker.h>

// As in CUDA's device library.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

namespace pk {

template <class T, int R, int C>
struct tile {
  static_assert(R % 64 == 0 && R > 0, "a tile has a multiple of 64 rows");
  static_assert(C * sizeof(T) % 128 == 0 && C > 0, "a row of a tile is a multiple of 128 bytes");
  using element = T;
  static constexpr int rows = R, cols = C;
  static constexpr int bytes = R * C * int(sizeof(T));
  alignas(128) unsigned char storage[bytes];

  tile() { sim::claim_shared(bytes); }
  tile(const tile&) = delete;
  sim::tile_ref ref() { return {storage, sim::dtype_of<T>, R, C}; }
};

template <class T, int R, int C, int G = 2>
struct reg_tile {
  static_assert(R > 0 && C > 0 && G > 0, "a register tile has rows, columns and warpgroups");
  static_assert(R % (64 * G) == 0, "each warpgroup holds a multiple of 64 rows: rows % (64 * G) == 0");
  static_assert(C % 16 == 0, "a register tile has a multiple of 16 columns");
  static constexpr int rows = R, cols = C;
  std::unique_ptr<T[]> data = sim::arithmetic() ? std::unique_ptr<T[]>(new T[R * C]()) : nullptr;
  T& element_at(int r, int c) { return data[r * C + c]; }
};

// One value per row of a register tile.
template <class T, int R, int G = 2>
struct reg_rows {
  std::unique_ptr<T[]> data = sim::arithmetic() ? std::unique_ptr<T[]>(new T[R]()) : nullptr;
};

template <int R, int C, int G>
void zero(reg_tile<float, R, C, G>& t) {
  if (t.data)
    for (int i = 0; i < R * C; ++i) t.data[i] = 0.0f;
}

// t = x, from shared memory.
template <class T, int R, int C, int G>
void load(group<G> self, reg_tile<float, R, C, G>& t, tile<T, R, C>& x) {
  sim::vector_work(*self.f, R * C, x.bytes);
  if (!t.data) return;
  sim::shared_access(*self.f, x.ref(), false);
  sim::to_float(t.data.get(), x.ref());
}

// x = columns [j * X, (j + 1) * X) of t, rounded once to the tile's type.
template <class T, int R, int X, int C, int G>
void store_columns(group<G> self, tile<T, R, X>& x, const reg_tile<float, R, C, G>& t, int j) {
  static_assert(C % X == 0, "the register tile's columns are a multiple of the shared tile's");
  sim::vector_work(*self.f, R * X, x.bytes);
  if (!t.data) return;
  sim::shared_access(*self.f, x.ref(), true);
  sim::from_float(x.ref(), t.data.get(), C, j * X);
}

template <class T, int R, int C, int G>
void store(group<G> self, tile<T, R, C>& x, const reg_tile<float, R, C, G>& t) {
  store_columns(self, x, t, 0);
}

// t += x.
template <class T, int R, int C, int G>
void accumulate(group<G> self, reg_tile<float, R, C, G>& t, tile<T, R, C>& x) {
  sim::vector_work(*self.f, R * C, x.bytes);
  if (!t.data) return;
  sim::shared_access(*self.f, x.ref(), false);
  const T* in = reinterpret_cast<const T*>(x.storage);
  for (int i = 0; i < R * C; ++i) t.data[i] += float(in[i]);
}

// Columns [j * X, (j + 1) * X) of t += x.
template <class T, int R, int X, int C, int G>
void accumulate_columns(group<G> self, reg_tile<float, R, C, G>& t, tile<T, R, X>& x, int j) {
  static_assert(C % X == 0, "the register tile's columns are a multiple of the shared tile's");
  sim::vector_work(*self.f, R * X, x.bytes);
  if (!t.data) return;
  sim::shared_access(*self.f, x.ref(), false);
  const T* in = reinterpret_cast<const T*>(x.storage);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < X; ++c) t.element_at(r, j * X + c) += float(in[r * X + c]);
}

// v = f(v, row, col) for every element of t.
template <int R, int C, int G, class F>
void map(group<G> self, reg_tile<float, R, C, G>& t, F f) {
  sim::vector_work(*self.f, R * C, 0);
  if (!t.data) return;
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) t.element_at(r, c) = f(t.element_at(r, c), r, c);
}

// v = f(v, other) element by element.
template <int R, int C, int G, class F>
void zip(group<G> self, reg_tile<float, R, C, G>& t, const reg_tile<float, R, C, G>& other, F f) {
  sim::vector_work(*self.f, R * C, 0);
  if (!t.data) return;
  for (int i = 0; i < R * C; ++i) t.data[i] = f(t.data[i], other.data[i]);
}

// out[row] = f(f(first, t[row][0]), t[row][1]) ...; f must be associative and commutative.
template <int R, int C, int G, class F>
void row_reduce(group<G> self, reg_rows<float, R, G>& out, reg_tile<float, R, C, G>& t, float first, F f) {
  sim::vector_work(*self.f, R * C, 0);
  if (!t.data) return;
  for (int r = 0; r < R; ++r) {
    float v = first;
    for (int c = 0; c < C; ++c) v = f(v, t.element_at(r, c));
    out.data[r] = v;
  }
}

// t[row][col] = f(t[row][col], by[row]).
template <int R, int C, int G, class F>
void map_rows(group<G> self, reg_tile<float, R, C, G>& t, const reg_rows<float, R, G>& by, F f) {
  sim::vector_work(*self.f, R * C, 0);
  if (!t.data) return;
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) t.element_at(r, c) = f(t.element_at(r, c), by.data[r]);
}

namespace sim {
// What the tensor cores of the machines behind the simulator take.
template <class T, int N>
constexpr void check_mma() {
  static_assert(sizeof(T) == 2, "mma takes bf16 or fp16 operands");
  static_assert(N == 64 || N == 128 || N == 192 || N == 256, "mma needs 64, 128, 192 or 256 result columns");
}
}  // namespace sim

// c += a * b, still in flight: complete after mma_wait. Operands must stay until then.
template <class T, int M, int K, int N, int G>
void mma_async(group<G> self, reg_tile<float, M, N, G>& c, tile<T, M, K>& a, tile<T, K, N>& b) {
  sim::check_mma<T, N>();
  sim::mma_issue(*self.f, 2.0 * M * N * K);
  if (!c.data) return;
  sim::mma_reads(*self.f, a.ref(), b.ref());
  sim::mma(c.data.get(), a.ref(), b.ref(), false);
}

// c += a * b^T, with b stored as N x K.
template <class T, int M, int K, int N, int G>
void mma_abt_async(group<G> self, reg_tile<float, M, N, G>& c, tile<T, M, K>& a, tile<T, N, K>& b) {
  sim::check_mma<T, N>();
  sim::mma_issue(*self.f, 2.0 * M * N * K);
  if (!c.data) return;
  sim::mma_reads(*self.f, a.ref(), b.ref());
  sim::mma(c.data.get(), a.ref(), b.ref(), true);
}

// At most `Pending` multiplications of c are still in flight afterwards.
template <int Pending, int R, int C, int G>
void mma_wait(group<G> self, reg_tile<float, R, C, G>&) {
  sim::mma_wait(*self.f, Pending);
}

}  // namespace pk
