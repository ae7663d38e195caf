// Slabs: tiles in registers as they lie in memory, in pieces of 16 bytes dealt round robin over the threads of
// a group. They go between registers and the memory of any rank without shared memory; a warp moves whole lines.
#pragma once

#include <pk/sm90/layout.h>

namespace pk {

template <class T, int R, int C, int G = 2>
struct slab {
  static_assert(C * sizeof(T) % 16 == 0, "a row of a slab is a multiple of 16 bytes");
  static constexpr int threads = threads_of(G);
  static_assert(R * C * sizeof(T) % (16 * threads) == 0,
                "a slab gives every thread of its group the same number of 16-byte pieces: R * C * sizeof(T) is a "
                "multiple of 2048 * G, of 1024 for group<0>");
  using element = T;
  static constexpr int rows = R, cols = C;
  static constexpr int width = 16 / int(sizeof(T));  // elements of a piece
  static constexpr int across = C / width;           // pieces of a row
  static constexpr int pieces = R * across / threads;
  uint4 data[pieces];
};

// fp32 sums of slabs of that shape, element by element where those have theirs.
template <class T, int R, int C, int G = 2>
struct slab_sum {
  using of = slab<T, R, C, G>;
  float data[of::pieces][of::width];
};

namespace sm90 {

// f(piece, pointer, elements inside the plane: `width`, fewer at the right edge, or 0 outside) for each of
// this thread's pieces of the slab at `at`.
template <class Slab, class T, class F>
PK_DEVICE void each_piece(const worker& self, int thread, const layout<T>& l, coord at, F f) {
  check_range<Slab>(self, l, at);
  const int plane = at.plane + int(copy_of(self.epoch)) * l.alternates;
  T* const base = l.data + (std::int64_t(plane) * l.rows + std::int64_t(at.row) * Slab::rows) * l.pitch +
                  std::int64_t(at.col) * Slab::cols;
  const int rows = l.rows - at.row * Slab::rows, cols = l.cols - at.col * Slab::cols;
  PK_UNROLL
  for (int i = 0; i < Slab::pieces; ++i) {
    const int v = thread + i * Slab::threads, row = v / Slab::across, col = v % Slab::across * Slab::width;
    f(i, base + row * l.pitch + col, row < rows ? min(Slab::width, max(cols - col, 0)) : 0);
  }
}

// Clears what follows the first `bytes` of a piece.
PK_DEVICE void keep_first(uint4& piece, int bytes) {
  std::uint32_t* const words[4] = {&piece.x, &piece.y, &piece.z, &piece.w};
  PK_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (bytes <= 4 * i) *words[i] = 0;
    else if (bytes < 4 * i + 4) *words[i] &= 0xffffu;
  }
}

template <class T>
PK_DEVICE void unpack(const uint4& piece, float (&v)[16 / sizeof(T)]) {
  const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
  PK_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2) v[2 * i] = left_of<T>(words[i]), v[2 * i + 1] = right_of<T>(words[i]);
    else v[i] = value_of<T>(words[i]);
  }
}

template <class T>
PK_DEVICE uint4 packed(const float (&v)[16 / sizeof(T)]) {
  std::uint32_t words[4];
  PK_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2) words[i] = pack<T>(v[2 * i], v[2 * i + 1]);
    else words[i] = bits_of<T>(v[i]);
  }
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace sm90

// v = src[at], zeros outside the plane. A row may be read to the end of its last 16 bytes.
template <class T, int R, int C, int G>
PK_DEVICE void load(group<G> self, slab<T, R, C, G>& v, const layout<T>& src, coord at) {
  using S = slab<T, R, C, G>;
  sm90::each_piece<S>(self, self.thread(), src, at, [&](int i, const T* from, int inside) {
    v.data[i] = inside > 0 ? sm90::load_piece(from) : uint4{};
    if (inside < S::width) sm90::keep_first(v.data[i], inside * int(sizeof(T)));
  });
}

// dst[at] = v. A later signal by the same worker publishes it.
template <class T, int R, int C, int G>
PK_DEVICE void store(group<G> self, const layout<T>& dst, coord at, const slab<T, R, C, G>& v) {
  using S = slab<T, R, C, G>;
  sm90::each_piece<S>(self, self.thread(), dst, at, [&](int i, T* to, int inside) {
    if (inside == S::width) {
      sm90::store_piece(to, v.data[i]);
    } else {
      const std::uint32_t words[4] = {v.data[i].x, v.data[i].y, v.data[i].z, v.data[i].w};
      PK_UNROLL
      for (int e = 0; e < S::width; ++e) {
        if (e >= inside) continue;
        if constexpr (sizeof(T) == 2) reinterpret_cast<std::uint16_t*>(to)[e] = std::uint16_t(words[e / 2] >> e % 2 * 16);
        else reinterpret_cast<std::uint32_t*>(to)[e] = words[e];
      }
    }
  });
}

template <class T, int R, int C, int G>
PK_DEVICE void zero(slab_sum<T, R, C, G>& sum) {
  PK_UNROLL
  for (auto& piece : sum.data) {
    PK_UNROLL
    for (float& v : piece) v = 0.0f;
  }
}

// sum += v.
template <class T, int R, int C, int G>
PK_DEVICE void accumulate(group<G>, slab_sum<T, R, C, G>& sum, const slab<T, R, C, G>& v) {
  using S = slab<T, R, C, G>;
  PK_UNROLL
  for (int i = 0; i < S::pieces; ++i) {
    float values[S::width];
    sm90::unpack<T>(v.data[i], values);
    PK_UNROLL
    for (int e = 0; e < S::width; ++e) sum.data[i][e] += values[e];
  }
}

// v = sum, rounded once.
template <class T, int R, int C, int G>
PK_DEVICE void convert(group<G>, slab<T, R, C, G>& v, const slab_sum<T, R, C, G>& sum) {
  PK_UNROLL
  for (int i = 0; i < v.pieces; ++i) v.data[i] = sm90::packed<T>(sum.data[i]);
}

}  // namespace pk
