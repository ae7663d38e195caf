// The simulated machine: ranks with memory and counters, blocks, fibers, and what they wait for.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <pk/sim/engine.h>

#include "fiber.h"
#include "order.h"
#include "past.h"
#include "path.h"
#include "source.h"

namespace pk::sim {

struct tensor_decl {
  std::string name;
  dtype type;
  std::vector<int> dims;
  bool output;
};

struct event;  // explore.h

// One schedule; see schedule.h. A part of an exhaustive search has `follow` and `asleep`, a replay has `choices`.
struct plan {
  std::string strategy = "eager";
  std::uint64_t seed = 0, horizon = 1000;
  int depth = 2;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> choices;  // at which event, which of the options; else the first
  const std::vector<std::uint64_t>* follow = nullptr;
  const std::vector<event>* asleep = nullptr;

  std::string text() const;  // as a request has it
};

// What the judge asks for; see request.cc for the text form.
struct request {
  bool timing = false, warm = false;  // warm: the tensors are in L2 when a launch begins
  int trace_blocks = 0;  // blocks of each kind that a trace shows; 0: no trace
  int world = 1, sms = 0, launches = 1;
  std::vector<int> compute_sms;  // beside the kernel's comm_sms, of all ranks or by rank; instead of sms
  int resident = 0;              // blocks of a rank that run at a time; 0 is all
  std::uint64_t placement = 0;   // draws the order in which they come; 0 is by index
  plan schedule;                 // of functional mode
  std::vector<plan> schedules;   // to explore
  bool explore = false, exhaustive = false;
  int most_schedules = 1 << 30;
  double wall_seconds = 30, exploration_wall = 1e9;  // of one schedule; of all
  std::uint64_t max_steps = 200'000'000;
  std::vector<tensor_decl> tensors;
  std::map<std::string, double> parameters;  // of the hardware sheet

  int sms_of(int rank) const;
  double parameter(const char* name) const;  // ends the run when the sheet lacks it
};

// One tensor of one rank. In timing mode `data` stays empty.
struct allocation {
  std::string name;
  dtype type;
  bool input = false, scratch = false, bound = false;
  int id = 0, planes = 1, rows = 1, cols = 1;
  std::int64_t pitch = 0;  // elements from one row to the next
  std::vector<unsigned char> copies[2];
  // L2 model: index of the first 64-row x 128-byte box of each view {planes, rows, cols, part}, by copy.
  std::map<std::array<int, 4>, std::int64_t> first_box[2];
};

// The counters that one signal object has on one rank. Launches use two sets by turns, so that what a fast
// rank signals in the next launch is not taken for what a slow one still owes in this one.
struct counters {
  std::string name;
  bool barrier = false;
  int slots = 0, per_launch = 0;
  int rank = 0, id = 0;  // whose; which signal object
  std::vector<std::uint64_t> value;
  std::vector<double> changed_at;
  std::vector<path> went;  // of whoever changed it last
  std::vector<std::vector<std::uint16_t>> from;      // [launch][slot * world + source]
  std::map<int, std::vector<struct fiber*>> waiting;  // by index
  std::vector<arrivals> arrived;                      // by index
  unsigned roles = 0;                                  // that have ever signalled it, as bits
  std::map<std::array<int, 3>, site> sent_at;          // {launch, source, slot}: the last signal's line
  std::set<std::array<int, 2>> waited;                 // {launch, slot}: somebody has waited for it

  std::uint64_t key(int index) const { return std::uint64_t(rank) << 48 | std::uint64_t(id) << 32 | unsigned(index); }
  int index(int slot, int launch) const { return barrier ? slot : launch % 2 * slots + slot; }
  std::uint64_t base(int launch) const { return barrier ? 0 : std::uint64_t(launch / 2) * std::uint64_t(per_launch); }
};

// What one source has posted to one slot. The numbers are those of the last launch in which it happened; data is
// what arrived, in functional mode.
struct letter {
  int posted = -1, arrived = -1, taken = -1;
  double arrived_at = 0;
  path went;  // of whoever posted it
  std::vector<unsigned char> data;
  struct fiber* waiting = nullptr;
};

// The box that one mailbox has on one rank. Launches use two copies by turns, as scratch memory is used.
struct box {
  std::string name;
  int slots = 0, bytes = 0;
  std::vector<letter> letters[2];  // [copy][source * slots + slot]

  letter& at(int source, int slot, int launch) { return letters[launch % 2][std::size_t(source) * slots + slot]; }
};

// `load` and `store` are time spent on slabs that are still on their way and on stores that have not left or landed.
enum class waiting_for { nothing, free_slot, data, signal, barrier, peers_to_enter, mailbox, load, store };
inline constexpr int wait_reasons = 9;

// What a signal does when it arrives: counts, and readies whoever has waited for it.
void deliver(struct counters&, int slot, int launch, int from, double at);

// What a letter's arrival does: fills it, and readies whoever waits for it.
void deliver(letter&, int launch, const std::vector<unsigned char>& data, double at);

// A store on its way: from shared memory, or from registers, of which a snapshot is taken when it is issued;
// to a tensor or into a mailbox.
struct pending_store {
  tensor_ref dst;
  coord at{0, 0};
  tile_ref src;
  bool add = false, registers = false, was_read = false, landed = false;
  letter* mail = nullptr;
  int to = 0, launch = 0;  // of `mail`: whose box, in which launch
  std::vector<unsigned char> snapshot;
  // Timing mode; `landed` says that these are known. The sender hears of the landing at known_at.
  double read_at = 0, landed_at = 0, known_at = 0;
  struct fiber* waiting = nullptr;
  path went;  // of its sender when it was issued

  int target() const { return mail != nullptr ? to : dst.owner; }  // the rank whose memory it goes to
};

struct block {
  struct tile_state {
    std::uint32_t state = 0;          // of shadow memory
    std::int16_t ring = -1, slot = -1;  // where it was last loaded
  };
  int rank = 0, index = 0, launch = 0;
  bool communicator = false;
  int live = 0;
  std::vector<const ring_core*> rings;
  std::unique_ptr<unsigned char[]> shared, comm_shared;
  std::unordered_map<const void*, tile_state> tiles;
  std::vector<ring_clock> ring_clocks;
  double tensor_free = 0, tma_free = 0, link_free = 0, memory_free = 0;
  double ended = 0;  // when the last of its workers that did anything was done
  std::vector<slot_path> slot_paths;  // [ring * max_depth + slot]
};

struct fiber {
  context where;
  void* stack = nullptr;
  std::size_t stack_bytes = 0;
  block* home = nullptr;
  sim::role role = sim::role::loader;
  std::uint64_t id = 0, issued = 0;  // id: the same in every schedule
  past known;                        // events before what it does next; of the exhaustive search
  bool done = false, queued = false;
  site at = 0;  // the last call into the engine
  worker_clock* clock = nullptr;
  double now = 0;
  waiting_for reason = waiting_for::nothing;
  const ring_core* ring = nullptr;
  const counters* counter = nullptr;
  const box* mailbox = nullptr;
  int slot = 0, source = 0;
  std::uint64_t wanted = 0;
  std::vector<std::shared_ptr<pending_store>> stores;
  double mma_done[8] = {};
  std::uint64_t mma_issued = 0;
  double signal_known_at = 0;        // when its last signal is known to have arrived
  double waited[wait_reasons] = {};  // us, timing mode
  path went;
  double remote_until = 0;  // when its last load from a peer is complete
};

// Statistics of one rank in timing mode; times in us, amounts in bytes or FLOP.
struct usage {
  double tensor = 0, vector = 0, hbm = 0, l2 = 0, link_out = 0, link_in = 0;
  double flops = 0, hbm_bytes = 0, l2_bytes = 0, out_bytes = 0, in_bytes = 0;
  double l2_hits = 0, l2_misses = 0, last_mma = 0, started = 0, finished = 0;
};

// What the kernel asked for, counted alike in both modes, over all launches: a kernel that does less where nothing is
// computed shows.
struct demand {
  double loaded = 0, stored = 0, crossing = 0;  // bytes of whole tiles and slabs; of both, what is a peer's
  double flops = 0, elements = 0, signals = 0;
};

struct rank_state {
  int launch = -1;      // index of the running or last launch
  int entered = 0;      // launches this rank has begun
  int left = 0;         // launches whose blocks have all finished here
  int finished = 0;     // launches that are complete, exit barrier included
  bool peers_bound = false;
  int live_blocks = 0;
  std::deque<int> to_place;  // blocks that have not begun
  std::map<std::string, allocation> tensors;
  std::deque<counters> signals;
  std::deque<box> boxes;
  std::vector<unsigned char> args;
  std::vector<std::unique_ptr<block>> blocks;
  std::vector<std::unique_ptr<fiber>> fibers;
  double entered_at = 0, left_at = 0;
  std::vector<past> began, ended;  // by launch: what its fibers know at entry, and whoever waits for its end
  path went;  // of the worker that was last to leave
  usage used;
  demand asked;
};

struct machine;

struct world {
  request ask;
  std::deque<rank_state> ranks;
  std::unique_ptr<machine> m;
  fiber* running = nullptr;
  context scheduler;
  std::uint64_t steps = 0;
  std::vector<void*> free_stacks;
  std::vector<fiber*> at_the_door;  // wait for every rank to enter the launch
};
extern world w;

// How time passes and data moves; functional.cc and timing.cc are the two kinds.
struct machine {
  virtual ~machine() = default;
  virtual void load(fiber&, ring_core&, int slot, const tile_ref&, const tensor_ref&, coord) = 0;
  virtual void store(fiber&, std::shared_ptr<pending_store>) = 0;
  virtual double load_slab(fiber&, const tile_ref&, const tensor_ref&, coord) = 0;  // when it is complete, or a ticket
  virtual double arrival_of(fiber&, double ready_at) { return ready_at; }  // of a load_slab, which it may wait for
  virtual void read_letter(fiber&, const letter&, const tile_ref&, double asked) = 0;  // taken since `asked`
  virtual void drain(fiber&, bool reads_only) = 0;
  virtual void post_signal(fiber&, counters&, int target, int slot, bool released) = 0;  // by the signal before it
  virtual void ready(fiber&, double at) = 0;  // makes a waiting fiber runnable
  virtual void begin(int rank) = 0;           // a launch begins on this rank
  virtual void end(int rank) = 0;             // all blocks have finished: calls launch_left when their effects are there
  virtual void in_order(fiber&) {}            // returns when no other fiber is behind this one
  virtual bool pauses_at_waits() const { return false; }  // whether a wait that can go on lets others go first
  virtual void publish(const fiber&, const void*, std::uint64_t) {}  // a hand-over between two fibers, by number
  virtual void observe(fiber&, const void*, std::uint64_t) {}
  virtual void look(fiber&) {}                // at a counter in the rank's memory
  virtual void mma_issue(fiber&, double flops) { (void)flops; }
  virtual void mma_wait(fiber&, int pending) { (void)pending; }
  virtual void vector_work(fiber&, double elements, double shared_bytes) { (void)elements, (void)shared_bytes; }
  virtual void hold(int rank, std::int64_t first_box, std::int64_t boxes) { (void)rank, (void)first_box, (void)boxes; }
  virtual void run() = 0;
};

// launch.cc
[[noreturn]] void run_functional(double wall);  // main.cc: one schedule, under an alarm
void launch_left(int rank);
bool advance_launches();  // begins and completes what can be; false when nothing changed
bool everything_finished();
void resume(fiber&);      // runs the fiber until it yields
void yield(fiber&);       // back to the scheduler
void park(fiber&, waiting_for);  // waits until ready() is called

// ring.cc
void load_landed(ring_core&, int slot, double at);  // one of the loads into that slot
void check_rings(const block&);  // when all roles of a block are done: no slot may be left half used

// host.cc
void declare_tensors();
void run_setup(int rank);
void load_inputs(int rank);
void save_outputs(int rank);
allocation& allocation_of(const tensor_ref&);
counters& counters_of(int rank, const signal_ref&);
box& box_of(int rank, const mailbox_ref&);
const char* name_of(role);
int element_bytes(dtype);

// ring.cc
void check_writable(const fiber&, const tensor_ref&);

// transfer.cc
void check_range(const fiber&, const char* what, const tensor_ref&, coord, int rows, int cols);
void copy_in(const tile_ref&, const tensor_ref&, coord);
void copy_out(const tensor_ref&, coord, const tile_ref&, const void* elements, bool add);

std::unique_ptr<machine> make_functional();
std::unique_ptr<machine> make_timing();

// demand.cc
demand& demand_of(const fiber&);
void demand_load(const fiber&, const tile_ref&, int owner);
void demand_store(const fiber&, const tile_ref&, int owner);
std::vector<std::pair<const char*, double>> figures(const demand&);

// report.cc: each ends the process after writing report.json
[[noreturn]] void finish_run();
[[noreturn]] void report_deadlock();
[[noreturn]] void report_fault(const fiber*, const std::string& kind, const std::string& message);
[[noreturn]] void report_timeout(const std::string& message);

// What many schedules have shown.
struct exploration_summary {
  int run = 0, redundant = 0;
  bool complete = false;  // every order of synchronization that makes a difference was run
  std::uint64_t steps = 0;  // of the longest
  std::string stopped, last;  // why it ended early; the last schedule
  std::vector<std::string> output_schedules;  // one for each different set of outputs
};
[[noreturn]] void write_exploration(const exploration_summary&);
std::string printf_string(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string describe(const fiber&);

request read_request(const char* path);

}  // namespace pk::sim
