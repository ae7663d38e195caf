// Moving and adding tiles through registers, without shared memory: what a communicator inside a compute SM
// does, whose shared memory belongs to the GEMM. Built on slabs, so one source for both machines.
#pragma once

namespace pk {

// Where a tile lies: which layout, and where in it.
template <class T>
struct place {
  const layout<T>& in;
  coord at;
};
template <class T> place(const layout<T>&, coord) -> place<T>;

// The rows of a Tile that a group<G> holds in `Pieces` registers of 16 bytes a thread.
template <class Tile, int G, int Pieces>
using strip = slab<typename Tile::element, least(Tile::rows, Pieces * 16 * threads_of(G) / (Tile::bytes / Tile::rows)), Tile::cols, G>;

// f(coord of the strip for a tile at `at`) ... for every strip of a Tile that overlaps the layout's plane.
template <class Tile, class Strip, class F>
PK_DEVICE void each_strip(int rows, coord at, F f) {
  constexpr int strips = Tile::rows / Strip::rows;
  for (int k = 0; k < strips && (at.row * strips + k) * Strip::rows < rows; ++k) f(k, strips);
}

PK_FN constexpr coord strip_of(coord tile, int k, int strips) {
  return {tile.plane, tile.row * strips + k, tile.col};
}

// target(i) = source for i < n, bit by bit. All places are counted in Tiles.
template <class Tile, int G, class T, class Target>
PK_DEVICE void copy(group<G> self, place<T> source, int n, Target target) {
  using part = strip<Tile, G, 8>;
  each_strip<Tile, part>(source.in.rows, source.at, [&](int k, int strips) {
    part v;
    load(self, v, source.in, strip_of(source.at, k, strips));
    for (int i = 0; i < n; ++i) {
      const auto to = target(i);
      store(self, to.in, strip_of(to.at, k, strips), v);
    }
  });
}

// sum = the strips `k` of source(r) over r < n, in that order, in fp32; `InFlight` loads are under way at a time.
template <int InFlight, class T, int R, int C, int G, class Source>
PK_DEVICE void add_up(group<G> self, slab_sum<T, R, C, G>& sum, int n, Source source, int k = 0, int strips = 1) {
  zero(sum);
  for (int r = 0; r < n; r += InFlight) {
    slab<T, R, C, G> v[InFlight];
    PK_UNROLL
    for (int i = 0; i < InFlight; ++i) {
      if (r + i >= n) break;
      const auto from = source(r + i);
      load(self, v[i], from.in, strip_of(from.at, k, strips));
    }
    PK_UNROLL
    for (int i = 0; i < InFlight; ++i)
      if (r + i < n) accumulate(self, sum, v[i]);
  }
}

// target(i) = the sum of source(r) over r < n, in that order, in fp32, for i < m. One rounding.
template <class Tile, int InFlight = 2, int G, class Source, class Target>
PK_DEVICE void reduce(group<G> self, int n, Source source, int m, Target target) {
  using part = strip<Tile, G, 8 / InFlight>;
  const auto first = source(0);
  each_strip<Tile, part>(first.in.rows, first.at, [&](int k, int strips) {
    slab_sum<typename part::element, part::rows, part::cols, G> sum;
    add_up<InFlight>(self, sum, n, source, k, strips);
    part v;
    convert(self, v, sum);
    for (int i = 0; i < m; ++i) {
      const auto to = target(i);
      store(self, to.in, strip_of(to.at, k, strips), v);
    }
  });
}

}  // namespace pk
