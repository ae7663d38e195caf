// The memory of each rank: L2 and HBM as serial servers, and which boxes L2 holds.
#pragma once

#include <algorithm>
#include <vector>

#include "l2.h"
#include "timing_costs.h"

namespace pk::sim {

// Something that handles one request after another.
struct server {
  double free = 0;
  double serve(double at, double duration) {
    free = std::max(at, free) + duration;
    return free;
  }
};

// The part of a tile or slab inside the tensor, as boxes. A slab need not fill its boxes; L2 brings in whole ones.
struct footprint {
  std::int64_t first_box;
  int down, across, row_of_boxes;
  double bytes, bytes_of_boxes;
};
footprint covered(const tile_ref&, const tensor_ref&, coord);

class memories {
 public:
  memories(int ranks, double l2_bytes, const costs&);

  void hold(int rank, std::int64_t first_box, std::int64_t boxes);  // in L2 from now on

  // From `rank`'s memory, asked for at `at`: when the last byte is on the SM's side of L2.
  double read(int rank, const footprint&, double at);

  // Into `rank`'s memory: when L2 has it all. Written lines stay in L2 and go to memory in the background.
  double write(int rank, const footprint&, double at);

  // Through L2 alone: when it is done.
  double pass_l2(int rank, double bytes, double at);

 private:
  struct ports {
    server hbm, l2;
  };
  double missing_share(int rank, const footprint&);
  double pass_hbm(int rank, double bytes, double at);

  const costs& rates_;
  std::vector<ports> ports_;
  l2_cache cache_;
};

}  // namespace pk::sim
