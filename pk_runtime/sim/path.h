// The critical path of a timing run, kept forward: every worker carries how the time up to now divides into kinds along
// the chain of causes that ends with it. Who waits takes over the path of whoever ended the wait, so that the path of the
// worker that finishes last says what the whole time was spent on; its parts add up to that time.
//
// The method is that of a critical path through a program activity graph (C.-Q. Yang and B. P. Miller, 1988), computed
// while the program runs, so that no graph is kept.
#pragma once

#include <cstddef>

namespace pk::sim {

struct fiber;
struct block;
struct ring_core;
struct letter;

// `memory` is this GPU's L2 and HBM with their latencies and queues, `link` the same of transfers between GPUs,
// `synchronization` flags on their way, and the barriers at entry and exit.
enum class spent { compute, memory, link, synchronization };
inline constexpr int spent_kinds = 4;

struct path {
  double until = 0;  // us; the parts add up to it
  double us[spent_kinds] = {};
};

// What a ring's slot brings to whoever waits for it.
struct slot_path {
  path filled, freed;
  double remote_until = 0;  // when the last load from a peer was complete, of those the slot may hold
};

// Nothing of this does anything in functional mode. `what` names the time in a trace.

// The time since the last charge went to `kind`.
void charge(fiber&, spent kind, const char* what);

// If a wait has just moved the clock: what led up to here is `cause`, and from its end on `kind`.
void follow(fiber&, const path& cause, spent kind, const char* what);

// The slowest of the stores a worker has just waited for, see machine::drain.
void charge_stores(fiber&, bool reads_only);

// A load from a peer into a slot is complete.
void slot_landed(block&, const ring_core&, int slot, double at);

void slot_filled(fiber&, const ring_core&, int slot);
void slot_freed(fiber&, const ring_core&, int slot);
void follow_filled(fiber&, const ring_core&, int slot);
void follow_freed(fiber&, const ring_core&, int slot);

// A letter was taken: it arrived, and was read from this GPU's memory.
void follow_letter(fiber&, const letter&, bool remote);

// Time of a slab or store that is there or done: `remote` ones are the link's.
void charge_transfer(fiber&, bool remote, const char* what);

}  // namespace pk::sim
