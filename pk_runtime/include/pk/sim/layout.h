// Layouts: a tensor in global memory seen as tiles, and the same tensor on every rank.
#pragma once

#include <pk/sim/tile.h>

namespace pk {

template <class T>
struct layout {
  int planes = 0, rows = 0, cols = 0;
  sim::tensor_ref ref;

  template <class Tile> int tiles_down() const { return ceil_div(rows, Tile::rows); }
  template <class Tile> int tiles_across() const { return ceil_div(cols, Tile::cols); }
};

// peers[r] is rank r's copy. planes, rows and cols are the same on all ranks.
template <class T>
struct parallel_layout {
  int planes = 0, rows = 0, cols = 0;
  layout<T> peers[max_ranks];

  const layout<T>& operator[](int rank) const { return peers[rank]; }
  template <class Tile> int tiles_down() const { return ceil_div(rows, Tile::rows); }
  template <class Tile> int tiles_across() const { return ceil_div(cols, Tile::cols); }
};

// dst[at] = t. Asynchronous; a later signal by the same worker publishes it, releasing the tile's slot
// waits until the tile has been read.
template <class Worker, class T, int R, int C>
void store_async(Worker self, const layout<T>& dst, coord at, tile<T, R, C>& t) {
  sim::store_async(*self.f, dst.ref, at, t.ref(), false);
}

// dst[at] += t, element by element, rounding to T at every addition, in order of arrival.
template <class Worker, class T, int R, int C>
void store_add_async(Worker self, const layout<T>& dst, coord at, tile<T, R, C>& t) {
  sim::store_async(*self.f, dst.ref, at, t.ref(), true);
}

// Waits until every tile this worker has stored from may be overwritten.
template <class Worker>
void drain_reads(Worker self) {
  sim::drain_reads(*self.f);
}

}  // namespace pk
