// What a kernel asks of its machine, counted at the same places in both modes. The judge compares the two: a kernel
// that tells a timing run from a real one, and does less there, shows.
#include "world.h"

namespace pk::sim {

demand& demand_of(const fiber& f) { return w.ranks[std::size_t(rank_of(f))].asked; }

namespace {

double bytes_of(const tile_ref& t) { return double(t.rows) * t.cols * element_bytes(t.type); }

}  // namespace

void demand_load(const fiber& f, const tile_ref& t, int owner) {
  demand& d = demand_of(f);
  d.loaded += bytes_of(t);
  if (owner != rank_of(f)) d.crossing += bytes_of(t);
}

void demand_store(const fiber& f, const tile_ref& t, int owner) {
  demand& d = demand_of(f);
  d.stored += bytes_of(t);
  if (owner != rank_of(f)) d.crossing += bytes_of(t);
}

std::vector<std::pair<const char*, double>> figures(const demand& d) {
  return {{"loaded_bytes", d.loaded}, {"stored_bytes", d.stored}, {"crossing_bytes", d.crossing},
          {"flops", d.flops},         {"elements", d.elements},   {"signals", d.signals}};
}

}  // namespace pk::sim
