// Happens-before: what the engine's operations order, and every access checked against it. Functional mode only; in
// timing mode no worker is tracked and each of these returns at once.
//
// What orders what is that of pk/sm90: a ring's mbarriers release and acquire; a signal releases what its worker has
// stored, after waiting for it to land; a wait acquires the signals that it has counted and fences the proxies; all
// threads of a kernel's entry acquire and fence, and its end releases. A mailbox orders nothing but its own words.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <pk/sim/engine.h>

#include "clock.h"
#include "shadow.h"

namespace pk::sim {

struct block;
struct counters;
struct allocation;

// A signal, a commit or a release that a worker made: for the words of a report.
struct release_note {
  enum kind_t { signal, barrier, commit, free_slot } kind;
  const counters* counter = nullptr;
  int rank = 0, slot = 0, launch = 0;
  site at = 0;
  std::uint32_t when = 0;
  std::uint32_t seen = 0, shared = 0, reads = 0, landings = 0, wgmmas = 0;  // what of the worker's own it covers
};

struct wait_note {
  const counters* counter = nullptr;
  int slot = 0, launch = 0;
  std::uint64_t count = 0;
  site at = 0;
  std::uint32_t when = 0;
};

// One position of a role, or the host of a rank. Its plain accesses of global and of shared memory are two agents.
struct worker_clock {
  int rank = 0, block = 0;
  sim::role role = sim::role::loader;
  bool host = false, threads = false;  // a group of several threads, of which the first issues what is asynchronous
  std::uint32_t number = 0;            // in the list of workers
  std::uint32_t global = 0, shared = 0;            // agents: roles
  std::uint32_t reads = 0, landings = 0, wgmmas = 0;  // agents: companions
  std::uint32_t together = 0;  // time of `global` when the threads of the group last met
  views now;
  stamp published;             // the last one, for signals in a row
  std::vector<release_note> releases;
  std::vector<wait_note> waits;
};

// The order that one ring makes: by slot, what committing and releasing it publishes.
struct ring_clock {
  std::uint32_t loads = 0;  // agent: companion
  std::vector<views> full, empty;
};

// The signals that have arrived at one counter, each with what it carries.
struct arrivals {
  int launch = -1;
  std::vector<stamp> stamps;
  std::map<std::uint64_t, views> through;  // of a barrier: the first so many arrivals, joined
};

namespace order {

// Launches. The host writes inputs and poisons outputs before a launch and reads outputs after it.
void track(fiber&);
void host_begins(int rank);
void host_ends(int rank, bool with_peers);
void enter(fiber&, bool with_peers);
void leave(fiber&);

void acquire_slot(fiber&, const ring_core&, int slot);
void load(fiber&, const ring_core&, int slot, const tile_ref&, const tensor_ref&, coord);
void commit_slot(fiber&, const ring_core&, int slot);
void wait_slot(fiber&, const ring_core&, int slot);
void release_slot(fiber&, const ring_core&, int slot);

void store(fiber&, const tensor_ref&, coord, const tile_ref&, bool add);
void slab(fiber&, const tensor_ref&, coord, const tile_ref&, bool write);
void drained(fiber&, bool reads_only);
void meet(fiber&);  // the threads of a group wait for each other

// Tiles between shared memory and registers, and into the tensor cores; `pending` multiplications may go on.
void touch(fiber&, const tile_ref&, bool write);
void multiply(fiber&, const tile_ref& a, const tile_ref& b);
void multiplied(fiber&, int pending);

// Signals. `publish` is what a signal carries; it `arrive`s later; a wait takes what `count` of them, or an arrival
// number of a barrier, guarantee.
stamp publish(fiber&, const counters&, int rank, int slot);
void arrive(counters&, int slot, int launch, const stamp&);
void wait(fiber&, counters&, int slot, std::uint64_t count);

// For reports.
const worker_clock& worker(std::uint32_t number);
const access& access_of(const epoch&);
const std::vector<worker_clock*>& workers();

}  // namespace order

}  // namespace pk::sim
