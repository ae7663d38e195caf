// The virtual GPUs: ranks of blocks of threads, each thread a fiber, and who may run.
#pragma once

#include <pk/emulated/words.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "../../sim/fiber.h"
#include "order.h"

namespace pk::emulated {

using site = std::uint32_t;  // a place in the program with the calls that led there

inline constexpr int spins_at_most = 16;            // then a loop waits until what it looks at changes
inline constexpr std::uint32_t shared_base = 1024;  // address of a block's first byte in the shared window

enum class scope : std::uint8_t { cta, cluster, gpu, sys };

// A copy between shared and global memory that was issued and may not have happened yet.
struct bulk_copy {
  int thread = -1;
  site where = 0;
  bool load = false, add = false, read = false, landed = false;  // read: the source is free again
  unsigned char map[128] = {};                                   // the tensor map's contents
  int col = 0, row = 0, plane = 0;
  unsigned char* shared = nullptr;  // where in the block's shared memory
  std::uint32_t group = 0;          // of the thread's bulk groups
  std::uint64_t barrier = 0;        // of a load: address of its mbarrier
  std::vector<unsigned char> held;  // a store's data between read and landing
};

// A fact that would have ordered something, had it been an acquire, a release or of a wider scope.
struct near_miss {
  enum reason { relaxed_load, relaxed_store, narrow } why;
  stamp of;
  site load, store;
};

struct builtin_variables {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};

struct thread {
  int id = 0, rank = 0, block = 0, index = 0;
  builtin_variables variables;
  sim::context fiber;
  void* stack = nullptr;
  bool lazy = false;  // seldom chosen while others can run
  enum { finished, ready, blocked } state = finished;

  // memory model
  known base;
  std::uint32_t now = 1, shared = 0, global = 0;
  stamp fence[4];                  // by scope: what the last fence of that scope released; base is null if none
  std::vector<stamp> unfenced[4];  // by scope: what relaxed loads would acquire at a fence
  std::deque<near_miss> misses;
  std::deque<std::shared_ptr<bulk_copy>> copies;  // issued stores whose landing this thread has not observed
  std::uint32_t open_group = 1;                   // of bulk stores; groups below are committed
  std::uint32_t free_group = 0;                   // groups whose sources this thread has seen free
  struct moments {
    std::uint32_t issued = 0, read = 0, landed = 0;  // when this thread did so and saw so; 0: it has not
    site read_at = 0;                                // where it waited for the read
  };
  std::map<std::uint32_t, moments> group_moments;
  std::uint32_t mma_groups = 0;
  int reads_component = -1, writes_component = -1, mma_component = -1;

  // call stack, as the compiler's instrumentation tells it
  std::uint32_t frame = 0;

  // waiting
  std::string waits_for;                                     // in words, while blocked
  std::function<bool()> wakes;                               // whether what it waits for is there
  bool clocked = false;                                      // may also be woken by time
  std::uint64_t spun = 0;                                    // where and what it last loaded
  int spins = 0;                                             // how often it has found the same there
  std::deque<std::pair<const void*, std::uint64_t>> polled;  // what it found since it last looked at the clock
  std::vector<operand> registers;                            // what it brings to an operation of its warp or warpgroup
  std::uint64_t given = 0;
  std::vector<std::uint64_t> exchanged;  // what the lanes of its warp gave
};

// Threads that meet: a barrier, or a warp or warpgroup at one instruction.
struct meeting {
  std::vector<thread*> arrived;
};

struct mbarrier {
  int expected = 0, pending = 0;
  std::int64_t bytes = 0;
  std::uint32_t phase = 0;  // completed ones
  int component = -1;
  std::uint32_t first = 0;  // count of the component at phase 0 of this launch
  releases arriving, completed;
};

struct block {
  int rank = 0, number = 0;
  unsigned char* memory = nullptr;
  int bytes = 0;
  std::vector<std::unique_ptr<thread>> threads;
  std::map<int, meeting> barriers;                                         // by number
  std::map<int, meeting> warps, warpgroups;                                // at an instruction
  std::map<std::uint32_t, mbarrier> mbarriers;                             // by shared address
  std::map<std::uint32_t, std::pair<int, std::uint32_t>> load_components;  // last component and count by mbarrier
};

struct rank_state {
  std::vector<std::unique_ptr<block>> blocks;
  int launch = 0, live = 0;  // threads that have not finished
  stamp host;                // what the host of this rank knows, and orders its next launch after
  bool running = false, done = false;
};

// Why a run ended before its end.
struct ended {
  std::string outcome, summary;
};

struct machine {
  int world = 0;
  std::uint64_t seed = 0, ns = 0, timeout_ns = 1000000;
  int slow = -1;
  std::mt19937_64 random;
  std::vector<rank_state> ranks;
  std::vector<thread*> threads;             // by component; null where that is no thread's
  std::vector<std::vector<thread*>> ready;  // by rank
  std::vector<std::shared_ptr<bulk_copy>> pending;
  thread* running = nullptr;
  sim::context main;
  ended end;

  bool chance(int of) { return seed != 0 && random() % std::uint64_t(of) == 0; }
};
extern machine m;

// --- threads.cc: who runs ---------------------------------------------------------------------------------
block& block_of(const thread& t);
void run_all(const std::function<bool(int rank)>& next_launch);
void wake(thread& t);
void pause();                                                                  // gives others a turn, now and then
void wait_until(std::string what, bool clocked, std::function<bool()> wakes);  // false awakenings are possible
void look_at_waiters();
std::string name_of(const thread& t);
[[noreturn]] void stop(const char* outcome, std::string summary);  // ends the run
void start_launch(int rank, int blocks, int threads, int shared_bytes, const void* kernel, const void* args,
                  const void* run);

// --- meetings.cc ------------------------------------------------------------------------------------------
void barrier(int number, int threads);
// The last of the threads of a warp or a warpgroup does `together`, then all go on.
void with_warp(const std::function<void(std::vector<thread*>&)>& together);
void with_warpgroup(const std::function<void(std::vector<thread*>&)>& together);

// --- ordering.cc: fences, releases, acquires ----------------------------------------------------------------
stamp stamp_of(thread& t);  // what it knows now; what it does next is not part of it
void acquire(thread& t, const stamp& s, bool same_block);
void observe(thread& t, int component, std::uint32_t count);  // an asynchronous operation was seen to be complete
void fence_shared(thread& t);
void fence_all(thread& t);
void fence_scope(thread& t, scope s);
int new_component();  // beside those of the threads
void after_store(thread& t, std::uint64_t at, bool release, scope s, bool keeps_others, site where);
void after_load(thread& t, std::uint64_t at, bool acquires, scope s, site where);

// --- mbarriers.cc -------------------------------------------------------------------------------------------
void mbarrier_init(std::uint32_t at, int arrivals, site where);
void mbarrier_arrive(std::uint32_t at, site where);
void mbarrier_expect(std::uint32_t at, int bytes);
bool mbarrier_wait(std::uint32_t at, std::uint32_t parity, site where);
mbarrier& find_mbarrier(block& b, std::uint32_t at, const char* use);
void mbarrier_loaded(block& b, std::uint32_t at, int bytes);

// --- bulk.cc ------------------------------------------------------------------------------------------------
void bulk_load(std::uint32_t shared, const void* map, int col, int row, int plane, std::uint32_t bar, site where);
void bulk_store(const void* map, int col, int row, int plane, std::uint32_t shared, bool add, site where);
void bulk_commit();
void bulk_wait(int pending, bool read_only, site where);
void land_one();
void check_exit(thread& t);

// --- mma.cc -------------------------------------------------------------------------------------------------
void mma_commit();
void mma_wait(int pending);
void multiply_add(int n, bool bf16, bool n_major, std::initializer_list<operand> registers, std::uint64_t a,
                  std::uint64_t b, bool accumulate, site where);

// --- sites.cc -----------------------------------------------------------------------------------------------
site site_of(const void* return_address);
std::vector<std::uint64_t> addresses_of(site s);  // innermost first

}  // namespace pk::emulated
