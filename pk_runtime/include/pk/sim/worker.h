// Who executes a role. An `issuer` is one thread (loader, storer); a `group` is G warpgroups acting
// together (consumer, communicator), group<0> the two warps that the issuers leave over. In the simulator each
// is one fiber.
#pragma once

#include <pk/sim/engine.h>

namespace pk {

struct worker {
  sim::fiber* f;
  int rank() const { return sim::rank_of(*f); }
  int world() const { return sim::world_of(*f); }
  int block() const { return sim::block_of(*f); }
  int blocks() const { return sim::blocks_of(*f); }
  // The tasks of this block out of n, dealt round robin over the blocks that run the role.
  strided tasks(int n) const { return {block(), blocks(), n}; }
};

struct issuer : worker {};

template <int G = 2>
struct group : worker {
  static constexpr int warpgroups = G, threads = threads_of(G);
};

}  // namespace pk
