// Task orders: which output tile is the t-th. Pure functions, the same for every role of a kernel,
// so that loader, consumer, storer and communicator agree by construction.
#pragma once

namespace pk {

struct tile_place { int row, col; };

// Super-grouped order over rows x cols tiles: walks columns inside bands of `group` rows, so that the
// blocks running at one time share operand rows and columns in L2.
PK_FN constexpr tile_place grouped(int t, int rows, int cols, int group) {
  int band = t / (group * cols);
  int height = least(group, rows - band * group);
  int inside = t - band * group * cols;
  return {band * group + inside % height, inside / height};
}

// t shifted by `start` in a cycle of `count`: rank-rotated orders keep destinations staggered.
PK_FN constexpr int rotated(int t, int start, int count) { return (t + start) % count; }

}  // namespace pk
