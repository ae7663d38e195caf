#include "timing_memory.h"

#include "trace.h"

namespace pk::sim {

namespace {

constexpr int box_rows = 64, box_width = 128, box_bytes = box_rows * box_width;

// Boxes of `unit` that [start, start + length) touches, and how much of them lies below `end`.
struct span {
  int first, count, extent;
};

span boxes(int start, int length, int end, int unit) {
  const int first = start / unit, after = (start + length - 1) / unit + 1;
  return {first, after - first, min(end, after * unit) - first * unit};
}

}  // namespace

footprint covered(const tile_ref& tile, const tensor_ref& t, coord at) {
  const int size = element_bytes(t.type);
  const int rows = min(tile.rows, t.rows - at.row * tile.rows), cols = min(tile.cols, t.cols - at.col * tile.cols);
  const int boxes_across = ceil_div(t.cols * size, box_width), boxes_down = ceil_div(t.rows, box_rows);
  const span down = boxes(at.row * tile.rows, rows, t.rows, box_rows);
  const span across = boxes(at.col * tile.cols * size, cols * size, t.cols * size, box_width);
  return {t.first_box + (std::int64_t(at.plane) * boxes_down + down.first) * boxes_across + across.first, down.count,
          across.count, boxes_across, double(rows) * cols * size, double(down.extent) * across.extent};
}

memories::memories(int ranks, double l2_bytes, const costs& rates)
    : rates_(rates), ports_(std::size_t(ranks)), cache_(ranks, std::int64_t(l2_bytes) / box_bytes) {}

void memories::hold(int rank, std::int64_t first_box, std::int64_t boxes) {
  for (std::int64_t i = 0; i < boxes; ++i) cache_.touch(rank, first_box + i);
}

double memories::missing_share(int rank, const footprint& a) {
  int misses = 0;
  for (int i = 0; i < a.down; ++i)
    for (int j = 0; j < a.across; ++j)
      if (!cache_.touch(rank, a.first_box + std::int64_t(i) * a.row_of_boxes + j)) ++misses;
  usage& u = w.ranks[std::size_t(rank)].used;
  u.l2_misses += misses, u.l2_hits += a.down * a.across - misses;
  return double(misses) / (a.down * a.across);
}

double memories::pass_l2(int rank, double bytes, double at) {
  usage& u = w.ranks[std::size_t(rank)].used;
  u.l2 += bytes / rates_.l2, u.l2_bytes += bytes;
  return ports_[std::size_t(rank)].l2.serve(at, bytes / rates_.l2);
}

double memories::pass_hbm(int rank, double bytes, double at) {
  usage& u = w.ranks[std::size_t(rank)].used;
  const double duration = bytes / rates_.hbm, done = ports_[std::size_t(rank)].hbm.serve(at, duration);
  u.hbm += duration, u.hbm_bytes += bytes;
  trace_port(rank, port::hbm, done - duration, done, duration, bytes);
  return done;
}

double memories::read(int rank, const footprint& a, double at) {
  const double missing = missing_share(rank, a) * a.bytes_of_boxes;
  double done = pass_l2(rank, a.bytes, at) + rates_.l2_latency;
  if (missing > 0) done = std::max(done, pass_hbm(rank, missing, at) + rates_.hbm_latency);
  return done;
}

double memories::write(int rank, const footprint& a, double at) {
  missing_share(rank, a);
  pass_hbm(rank, a.bytes, at);
  return pass_l2(rank, a.bytes, at);
}

}  // namespace pk::sim
