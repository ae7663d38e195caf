// Register tiles: R x C values over G warpgroups, each with R / G consecutive rows in wgmma's accumulator
// layout. Every index into a thread's values is known to the compiler, so they are registers.
#pragma once

#include <pk/sm90/tile.h>

namespace pk {

template <class T, int R, int C, int G = 2>
struct reg_tile {
  static_assert(R % (64 * G) == 0, "each warpgroup holds a multiple of 64 rows: rows % (64 * G) == 0");
  static_assert(C % 16 == 0, "a register tile has a multiple of 16 columns");
  static constexpr int rows = R, cols = C;
  static constexpr int bands = R / (64 * G);  // of 64 rows, a warpgroup
  T data[bands][C / 2] = {};                  // [band][column group * 4 + element]

  static PK_DEVICE int first_row(group<G> self, int band) { return (self.warpgroup() * bands + band) * 64; }
};

// One value per row of a register tile, the same in the four threads that share a row.
template <class T, int R, int G = 2>
struct reg_rows {
  static constexpr int bands = R / (64 * G);
  T data[bands][2] = {};
};

namespace sm90 {

// f(value, band, column group, element) for every value that this thread holds.
template <class T, int R, int C, int G, class F>
PK_DEVICE void each(reg_tile<T, R, C, G>& t, F f) {
  PK_UNROLL
  for (int b = 0; b < t.bands; ++b) {
    PK_UNROLL
    for (int i = 0; i < C / 2; ++i) f(t.data[b][i], b, i / 4, i % 4);
  }
}

// One column chunk of t goes to x; the caller has seen to it that nobody uses x.
template <class T, int R, int X, int C, int G>
PK_DEVICE void write_columns(group<G> self, tile<T, R, X>& x, const reg_tile<float, R, C, G>& t, int chunk) {
  PK_UNROLL
  for (int b = 0; b < t.bands; ++b)
    write_fragment(x, t.first_row(self, b), [&](int j, int e) { return t.data[b][(chunk * (X / 8) + j) * 4 + e]; });
}

// As write_columns with a chunk that may be a run-time value: registers cannot be indexed.
template <class T, int R, int X, int C, int G>
PK_DEVICE void write_any_columns(group<G> self, tile<T, R, X>& x, const reg_tile<float, R, C, G>& t, int chunk) {
  static_assert(C % X == 0, "the register tile's columns are a multiple of the shared tile's");
  PK_UNROLL
  for (int j = 0; j < C / X; ++j)
    if (j == chunk) write_columns(self, x, t, j);
  fence_async_shared();
}

}  // namespace sm90

template <int R, int C, int G>
PK_DEVICE void zero(reg_tile<float, R, C, G>& t) {
  sm90::each(t, [](float& v, int, int, int) { v = 0.0f; });
}

// t = x, from shared memory.
template <class T, int R, int C, int G>
PK_DEVICE void load(group<G> self, reg_tile<float, R, C, G>& t, tile<T, R, C>& x) {
  PK_UNROLL
  for (int b = 0; b < t.bands; ++b)
    sm90::read_fragment(x, t.first_row(self, b), [&](int j, int e, float v) { t.data[b][j * 4 + e] = v; });
  sm90::fence_async_shared();  // x may be the target of a bulk load as soon as its slot is released
}

// t += x.
template <class T, int R, int C, int G>
PK_DEVICE void accumulate(group<G> self, reg_tile<float, R, C, G>& t, tile<T, R, C>& x) {
  PK_UNROLL
  for (int b = 0; b < t.bands; ++b)
    sm90::read_fragment(x, t.first_row(self, b), [&](int j, int e, float v) { t.data[b][j * 4 + e] += v; });
  sm90::fence_async_shared();
}

// Columns [j * X, (j + 1) * X) of t += x. `j` must be known to the compiler: registers cannot be indexed.
template <class T, int R, int X, int C, int G>
PK_DEVICE void accumulate_columns(group<G> self, reg_tile<float, R, C, G>& t, tile<T, R, X>& x, int j) {
  PK_UNROLL
  for (int b = 0; b < t.bands; ++b)
    sm90::read_fragment(x, t.first_row(self, b), [&](int i, int e, float v) { t.data[b][(j * (X / 8) + i) * 4 + e] += v; });
  sm90::fence_async_shared();
}

// x = columns [j * X, (j + 1) * X) of t, rounded once to the tile's type.
template <class T, int R, int X, int C, int G>
PK_DEVICE void store_columns(group<G> self, tile<T, R, X>& x, const reg_tile<float, R, C, G>& t, int j) {
  self.sync();  // other warps may still read x
  sm90::write_any_columns(self, x, t, j);
  self.sync();  // and may read all of it from here on
}

// The slot's mbarriers do what the two barriers above do.
template <class T, int R, int X, int C, int G>
PK_DEVICE void store_columns(group<G> self, sm90::ring_slot<tile<T, R, X>>& x, const reg_tile<float, R, C, G>& t,
                             int j) {
  sm90::write_any_columns(self, x, t, j);
}

template <class Tile, int R, int C, int G>
PK_DEVICE void store(group<G> self, Tile& x, const reg_tile<float, R, C, G>& t) {
  static_assert(Tile::cols == C, "store writes a whole tile: use store_columns for a part of the registers");
  store_columns(self, x, t, 0);
}

// v = f(v, row, col) for every element of t.
template <int R, int C, int G, class F>
PK_DEVICE void map(group<G> self, reg_tile<float, R, C, G>& t, F f) {
  sm90::each(t, [&](float& v, int b, int j, int e) {
    v = f(v, t.first_row(self, b) + sm90::fragment::row(e), j * 8 + sm90::fragment::col(e));
  });
}

// v = f(v, other) element by element.
template <int R, int C, int G, class F>
PK_DEVICE void zip(group<G>, reg_tile<float, R, C, G>& t, const reg_tile<float, R, C, G>& other, F f) {
  sm90::each(t, [&](float& v, int b, int j, int e) { v = f(v, other.data[b][j * 4 + e]); });
}

// out[row] = f over the row, beginning with `first`; f must be associative and commutative.
template <class T, int R, int C, int G, class F>
PK_DEVICE void row_reduce(group<G>, reg_rows<T, R, G>& out, reg_tile<float, R, C, G>& t, float first, F f) {
  PK_UNROLL
  for (int b = 0; b < t.bands; ++b) {
    PK_UNROLL
    for (int half = 0; half < 2; ++half) {
      float v = f(t.data[b][half * 2], t.data[b][half * 2 + 1]);
      PK_UNROLL
      for (int j = 1; j < C / 8; ++j) v = f(f(v, t.data[b][j * 4 + half * 2]), t.data[b][j * 4 + half * 2 + 1]);
      v = f(v, __shfl_xor_sync(0xffffffffu, v, 1));
      v = f(v, __shfl_xor_sync(0xffffffffu, v, 2));
      out.data[b][half] = f(first, v);
    }
  }
}

// t[row][col] = f(t[row][col], by[row]).
template <class T, int R, int C, int G, class F>
PK_DEVICE void map_rows(group<G>, reg_tile<float, R, C, G>& t, const reg_rows<T, R, G>& by, F f) {
  sm90::each(t, [&](float& v, int b, int, int e) { v = f(v, by.data[b][e >> 1]); });
}

}  // namespace pk
