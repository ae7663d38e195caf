// Layouts: a tensor in global memory seen as tiles, and the same tensor on every rank. Each carries its
// tensor map for bulk copies: 3-D (cols, rows, planes) in boxes of 64 rows x 128 bytes, of which parts outside a
// plane read as zeros and are not written; and, for slabs, its address. Rows start at multiples of 16 bytes.
#pragma once

#include <pk/sm90/tile.h>

namespace pk {

template <class T>
struct layout {
  sm90::tensor_map map = {};
  int planes = 0, rows = 0, cols = 0;
  int id = -1;         // as bound by setup(), for reports
  int alternates = 0;  // planes to the second copy of scratch memory; 0 if there is one copy
  T* data = nullptr;
  std::int64_t pitch = 0;  // elements from row to row

  template <class Tile> PK_FN int tiles_down() const { return ceil_div(rows, Tile::rows); }
  template <class Tile> PK_FN int tiles_across() const { return ceil_div(cols, Tile::cols); }
};

// peers[r] is rank r's copy. planes, rows and cols are the same on all ranks.
template <class T>
struct parallel_layout {
  layout<T> peers[max_ranks];
  int planes = 0, rows = 0, cols = 0;

  PK_FN const layout<T>& operator[](int rank) const { return peers[rank]; }
  template <class Tile> PK_FN int tiles_down() const { return ceil_div(rows, Tile::rows); }
  template <class Tile> PK_FN int tiles_across() const { return ceil_div(cols, Tile::cols); }
};

namespace sm90 {

// One thread: ends the kernel unless the tile begins inside the layout.
template <class Tile, class T>
PK_DEVICE void check_range(const worker& self, const layout<T>& l, coord at) {
  if (unsigned(at.plane) < unsigned(l.planes) && unsigned(at.row) * Tile::rows < unsigned(l.rows) &&
      unsigned(at.col) * Tile::cols < unsigned(l.cols))
    return;
  stop(self, failure_kind::out_of_range, [&](failure& f) {
    f.object = l.id;
    f.plane = at.plane, f.row = at.row, f.col = at.col;
  });
}

// One thread: f(first column, first row, plane, shared address) for every box of the tile.
template <class T, int R, int C, class F>
PK_DEVICE void each_box(const worker& self, const layout<T>& l, coord at, const tile<T, R, C>& t, F f) {
  using Tile = tile<T, R, C>;
  check_range<Tile>(self, l, at);
  const std::uint32_t base = shared_address(t.storage);
  const int plane = at.plane + int(copy_of(self.epoch)) * l.alternates;
  PK_UNROLL
  for (int p = 0; p < panels<Tile>; ++p) {
    PK_UNROLL
    for (int r = 0; r < R; r += 64)
      f(at.col * C + p * panel_cols<T>, at.row * R + r, plane, base + p * panel_bytes<Tile> + r * 128);
  }
}

}  // namespace sm90

// dst[at] = t. Asynchronous; a later signal by the same worker publishes it, releasing the tile's slot
// waits until the tile has been read.
template <class Worker, class T, int R, int C>
PK_DEVICE void store_async(Worker self, const layout<T>& dst, coord at, tile<T, R, C>& t) {
  if (!self.leads()) return;
  sm90::each_box(self, dst, at, t, [&](int col, int row, int plane, std::uint32_t src) {
    sm90::tma_store(dst.map, col, row, plane, src);
  });
  sm90::bulk_commit();
}

// dst[at] += t, element by element, rounding to T at every addition, in order of arrival.
template <class Worker, class T, int R, int C>
PK_DEVICE void store_add_async(Worker self, const layout<T>& dst, coord at, tile<T, R, C>& t) {
  if (!self.leads()) return;
  sm90::each_box(self, dst, at, t, [&](int col, int row, int plane, std::uint32_t src) {
    sm90::tma_add(dst.map, col, row, plane, src);
  });
  sm90::bulk_commit();
}

// Waits until every tile this worker has stored from may be overwritten.
template <class Worker>
PK_DEVICE void drain_reads(Worker self) {
  if (self.leads()) sm90::bulk_wait_read();
  self.sync();
}

}  // namespace pk
