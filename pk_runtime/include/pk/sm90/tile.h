// Shared tiles. A tile is stored as panels of 128 bytes a row (64 elements of 16 bits, 32 of 32 bits),
// one panel after the other, each with all rows of the tile. Inside a panel the eight 16-byte chunks of
// row r are permuted: chunk c lies at place c ^ (r % 8). This is the 128-byte swizzle of tensor maps and of
// wgmma descriptors, so neither bulk copies nor wgmma nor the fragments below meet a bank conflict.
#pragma once

#include <pk/sm90/types.h>
#include <pk/sm90/worker.h>

namespace pk {

template <class T, int R, int C>
struct tile {
  static_assert(R % 64 == 0 && R > 0, "a tile has a multiple of 64 rows");
  static_assert(C * sizeof(T) % 128 == 0 && C > 0, "a row of a tile is a multiple of 128 bytes");
  using element = T;
  static constexpr int rows = R, cols = C;
  static constexpr int bytes = R * C * int(sizeof(T));
  alignas(1024) unsigned char storage[bytes];

  tile() = default;
  tile(const tile&) = delete;
};

namespace sm90 {

template <class T> inline constexpr int panel_cols = 128 / int(sizeof(T));
template <class Tile> inline constexpr int panels = Tile::cols / panel_cols<typename Tile::element>;
template <class Tile> inline constexpr int panel_bytes = Tile::rows * 128;

// A slot of a store_ring: its consumer is another role, so whoever fills it need not wait for the other
// warps of its own group.
template <class Tile>
struct ring_slot : Tile {};

// How 64 rows x C columns lie in the registers of a warpgroup: wgmma's accumulator layout. Element e of
// column group j (8 columns) of a thread is at row(e), j * 8 + col(e).
struct fragment {
  static PK_DEVICE int lane() { return int(threadIdx.x) & 31; }
  static PK_DEVICE int warp_row() { return (int(threadIdx.x) & 96) >> 1; }  // 16 rows a warp
  static PK_DEVICE int row(int e) { return warp_row() + lane() / 4 + (e >> 1) * 8; }
  static PK_DEVICE int col(int e) { return lane() % 4 * 2 + (e & 1); }
};

// Walks a tile with 16-bit elements in blocks of 16 x 16, each four 8 x 8 matrices in the order of a
// fragment's registers: top left, bottom left, top right, bottom right.
template <class Tile>
struct matrices {
  std::uint32_t row, chunk;
  PK_DEVICE matrices(const Tile& t, int first_row) {
    const int lane = fragment::lane(), r = first_row + fragment::warp_row() + lane % 16;
    row = shared_address(t.storage) + r * 128;
    chunk = ((lane >> 4) ^ (lane & 7)) << 4;
  }
  PK_DEVICE std::uint32_t at(int col) const {  // col: a multiple of 16
    return row + col / 64 * panel_bytes<Tile> + (chunk ^ (col % 64 * 2));
  }
};

// The same for 32-bit elements: 8 columns, of which a thread holds two in each of two rows.
template <class Tile>
struct pairs {
  std::uint32_t row, chunk;
  PK_DEVICE pairs(const Tile& t, int first_row) {
    const int lane = fragment::lane();
    row = shared_address(t.storage) + (first_row + fragment::row(0)) * 128 + (lane & 1) * 8;
    chunk = (((lane & 2) >> 1) ^ (lane >> 2 & 7)) << 4;
  }
  PK_DEVICE std::uint32_t at(int col, int lower) const {  // col: a multiple of 8; lower: 8 rows below
    return row + lower * 1024 + col / 32 * panel_bytes<Tile> + (chunk ^ (col % 32 * 4));
  }
};

// Reads 64 rows of a tile from `first_row`: f(j, e, value) for column group j and element e of the fragment.
template <class T, int R, int C, class F>
PK_DEVICE void read_fragment(const tile<T, R, C>& x, int first_row, F f) {
  if constexpr (sizeof(T) == 2) {
    const matrices<tile<T, R, C>> m(x, first_row);
    PK_UNROLL
    for (int c = 0; c < C; c += 16) {
      std::uint32_t v[4];
      load_matrices(v, m.at(c));
      PK_UNROLL
      for (int i = 0; i < 4; ++i) {
        f(c / 8 + i / 2, i % 2 * 2, left_of<T>(v[i]));
        f(c / 8 + i / 2, i % 2 * 2 + 1, right_of<T>(v[i]));
      }
    }
  } else {
    const pairs<tile<T, R, C>> p(x, first_row);
    PK_UNROLL
    for (int c = 0; c < C; c += 8) {
      PK_UNROLL
      for (int lower = 0; lower < 2; ++lower) {
        std::uint32_t v[2];
        load_pair(v, p.at(c, lower));
        f(c / 8, lower * 2, value_of<T>(v[0]));
        f(c / 8, lower * 2 + 1, value_of<T>(v[1]));
      }
    }
  }
}

// Writes 64 rows of a tile from `first_row`: f(j, e) gives element e of column group j.
template <class T, int R, int C, class F>
PK_DEVICE void write_fragment(tile<T, R, C>& x, int first_row, F f) {
  if constexpr (sizeof(T) == 2) {
    const matrices<tile<T, R, C>> m(x, first_row);
    PK_UNROLL
    for (int c = 0; c < C; c += 16) {
      std::uint32_t v[4];
      PK_UNROLL
      for (int i = 0; i < 4; ++i) v[i] = pack<T>(f(c / 8 + i / 2, i % 2 * 2), f(c / 8 + i / 2, i % 2 * 2 + 1));
      store_matrices(m.at(c), v);
    }
  } else {
    const pairs<tile<T, R, C>> p(x, first_row);
    PK_UNROLL
    for (int c = 0; c < C; c += 8) {
      PK_UNROLL
      for (int lower = 0; lower < 2; ++lower) {
        const std::uint32_t v[2] = {bits_of<T>(f(c / 8, lower * 2)), bits_of<T>(f(c / 8, lower * 2 + 1))};
        store_pair(p.at(c, lower), v);
      }
    }
  }
}

}  // namespace sm90
}  // namespace pk
