// What a launch gets beside the kernel's arguments, and the records that ranks and the host share.
#pragma once

#include <cstdint>

#include <pk/sm90/ptx.h>

namespace pk::sm90 {

// Grows when a structure here or in host.h changes: the launcher refuses a kernel with another number.
inline constexpr int abi_version = 2;

enum class role : int { loader, consumer, storer, communicator, none };

// Why a kernel ended itself.
enum class failure_kind : int {
  nothing,
  free_slot,       // of a ring: its consumer released none
  data,            // of a ring: its producer committed none, or the loads did not land
  signal,
  barrier,
  peers_to_enter,  // slot: the rank that has not entered this launch (or, without parallel tensors, the last)
  peers_to_leave,
  out_of_range,    // a tile, or a slot of signals or of a mailbox (plane: its rank)
  mailbox,         // plane: the rank that has not posted; seen, wanted: launch numbers
};

// Most blocks of one launch on one rank.
inline constexpr int max_blocks = 1024;

// One per rank in symmetric memory: zeroed, then published, never reset. Counters only grow. Every block has
// an epoch of its own, all equal between launches, so that no block waits for another at its end.
struct control {
  std::uint32_t epoch[max_blocks];                // [b]: launches that block b of this rank has completed
  alignas(128) std::uint32_t entered[max_ranks];  // [r]: launches that rank r has entered
  alignas(128) std::uint32_t left[max_ranks];     // [r]: blocks of rank r that have left, over all launches
};

// Written by the thread that gives up, in memory the host can read after a trap. One per block and role.
struct failure {
  std::int32_t kind, rank, block, role;
  std::int32_t object, slot;     // tensor, signals: as numbered by setup(); ring: as declared in `shared`
  std::int32_t plane, row, col;  // of a tile that is out of range
  std::int32_t epoch;
  std::uint64_t seen, wanted, waited_ns;
};

// The second parameter of every kernel.
struct launch {
  std::int32_t rank, world;
  std::int32_t peers_bound;   // the caller's tensors are read or written by peers: barriers at both ends
  std::int32_t symmetric;     // scratch, signals or a barrier: at most one launch ahead of any peer
  std::uint64_t timeout_ns;   // of every single wait
  failure* failures;          // [blocks][4], or null
  control* controls[max_ranks];
};

// How objects that alternate between two copies know which one this launch uses. The peers' next
// launches already use the other one.
PK_DEVICE std::uint32_t copy_of(std::uint32_t epoch) { return epoch & 1; }
PK_DEVICE std::uint32_t uses_before(std::uint32_t epoch) { return epoch >> 1; }

}  // namespace pk::sm90
