// Launches: blocks and fibers of one rank, the barriers at entry and exit, and what follows what.
#include <algorithm>

#include "world.h"

namespace pk::sim {

world w;

bool arithmetic() { return !w.ask.timing; }
int rank_of(const fiber& f) { return f.home->rank; }
int world_of(const fiber&) { return w.ask.world; }

int block_of(const fiber& f) {
  return f.home->communicator ? f.home->index - (w.ask.sms_of(f.home->rank) - pk_program.comm_sms) : f.home->index;
}

int blocks_of(const fiber& f) {
  return f.home->communicator ? pk_program.comm_sms : w.ask.sms_of(f.home->rank) - pk_program.comm_sms;
}

const char* name_of(role r) {
  static const char* names[] = {"loader", "consumer", "storer", "communicator"};
  return names[int(r)];
}

void yield(fiber& f) { switch_to(f.where, w.scheduler); }

void resume(fiber& f) {
  if (++w.steps > w.ask.max_steps)
    report_timeout(printf_string("the kernel did not finish within %llu steps of the scheduler; it was in %s",
                                 static_cast<unsigned long long>(w.ask.max_steps), describe(f).c_str()));
  w.running = &f;
  switch_to(w.scheduler, f.where);
  w.running = nullptr;
}

void park(fiber& f, waiting_for reason) {
  double from = f.now;
  f.reason = reason;
  yield(f);
  f.reason = waiting_for::nothing;
  f.waited[int(reason)] += f.now - from;
}

namespace {

constexpr std::size_t timing_stack = 64 << 10, functional_stack = 512 << 10;
std::size_t claimed = 0;
std::vector<const ring_core*> rings;  // of the block under construction

bool has_inside_communicator() { return pk_program.has[int(role::communicator)] && pk_program.comm_sms == 0; }

// Peers write our outputs and read our inputs only between the two barriers. Without such tensors it is
// enough that every rank has begun the launch before: then all have finished the one that last used the
// same copy of scratch memory and the same set of counters.
bool all_entered(int launches) {
  return std::all_of(w.ranks.begin(), w.ranks.end(), [=](const rank_state& r) { return r.entered >= launches; });
}

bool all_left(int launches) {
  return std::all_of(w.ranks.begin(), w.ranks.end(), [=](const rank_state& r) { return r.left >= launches; });
}

double last_entry() {
  double at = 0;
  for (const rank_state& r : w.ranks) at = std::max(at, r.entered_at);
  return at;
}

void place_block(rank_state&, int rank, double at);
// Who did nothing but enter does not count as the end of a block's work.
void note_end(const fiber& f, block& b, rank_state& r) {
  if (f.went.until > f.went.us[int(spent::synchronization)]) b.ended = std::max(b.ended, f.now);
  if (f.now >= r.left_at) r.went = f.went;
}

void finish_fiber(fiber& f) {
  block& b = *f.home;
  rank_state& r = w.ranks[b.rank];
  f.done = true;
  note_end(f, b, r);
  r.left_at = std::max(r.left_at, f.now);
  if (--b.live > 0) return;
  check_rings(b);
  for (const int before = r.live_blocks; r.live_blocks == before && !r.to_place.empty();) place_block(r, b.rank, f.now);
  if (--r.live_blocks > 0) return;
  w.m->end(b.rank);
}

// Even ranks that enter together hear of each other only after a release and a crossing.
double door_us() {
  if (!w.ask.timing || w.ask.world == 1) return 0;
  return w.ask.parameter("release_us") + w.ask.parameter("flag_latency_us");
}

// Every rank's last block tells all ranks, after one fence.
double hears_of_all(int rank) {
  double at = w.ranks[rank].left_at;
  if (!w.ask.timing || w.ask.world == 1) return at;
  for (const rank_state& source : w.ranks) at = std::max(at, source.left_at + door_us());
  return at;
}

void cross_the_door(fiber& f) {
  if (!w.ask.timing) return;
  const double open = last_entry() + door_us();
  f.waited[int(waiting_for::peers_to_enter)] += std::max(open - f.now, 0.0);
  f.now = std::max(f.now, open);
  charge(f, spent::synchronization, "enter");
}

// Of a launch that every rank has begun.
void learn_of_entries(fiber& f, int launch) {
  if (launch < 0) return;
  for (const rank_state& r : w.ranks) f.known.join(r.began[std::size_t(launch)]);
}

void body(void* argument) {
  fiber& f = *static_cast<fiber*>(argument);
  rank_state& r = w.ranks[f.home->rank];
  while (!all_entered(r.peers_bound ? r.launch + 1 : r.launch)) {
    w.at_the_door.push_back(&f);
    park(f, waiting_for::peers_to_enter);
  }
  if (r.peers_bound) cross_the_door(f);
  learn_of_entries(f, r.peers_bound ? r.launch : r.launch - 1);
  order::enter(f, r.peers_bound);
  const auto& shared = f.role == role::communicator ? f.home->comm_shared : f.home->shared;
  pk_program.run(f.role, f, r.args.data(), shared.get());
  w.m->drain(f, false);
  order::drained(f, false);
  order::leave(f);
  finish_fiber(f);
  for (;;) yield(f);
}

// The same in every schedule; the low bits are left to what the fiber issues.
std::uint64_t id_of(const block& b, role which) {
  const auto of_rank = std::uint64_t(b.launch) * max_ranks + std::uint64_t(b.rank);
  return (of_rank << 12 | std::uint64_t(b.index)) << 28 | (std::uint64_t(which) + 1) << 24;
}

void add_fiber(rank_state& r, block& b, role which, double at) {
  auto f = std::make_unique<fiber>();
  const std::size_t bytes = w.ask.timing ? timing_stack : functional_stack;
  if (w.free_stacks.empty()) {
    f->stack = allocate_stack(bytes);
  } else {
    f->stack = w.free_stacks.back();
    w.free_stacks.pop_back();
  }
  f->stack_bytes = bytes;
  f->home = &b, f->role = which, f->now = at;
  f->id = id_of(b, which);
  f->known = r.began.back();
  order::track(*f);
  f->went.until = f->went.us[int(spent::synchronization)] = at;
  prepare(f->where, f->stack, bytes, body, f.get());
  ++b.live;
  w.m->ready(*f, at);
  r.fibers.push_back(std::move(f));
}

using storage = std::unique_ptr<unsigned char[]>;

storage allocate_shared(std::size_t bytes) { return storage(new (std::align_val_t{128}) unsigned char[bytes]); }

// What the author declares, in blocks of this kind. With comm_sms = 0 every block has a communicator too.
void construct_shared(block& b) {
  claimed = 0, rings.clear();
  std::string of;
  if (!b.communicator) {
    b.shared = allocate_shared(pk_program.shared_bytes);
    pk_program.construct_shared(b.shared.get());
    of = "shared needs";
  }
  if (b.communicator || has_inside_communicator()) {
    b.comm_shared = allocate_shared(pk_program.comm_shared_bytes);
    pk_program.construct_comm_shared(b.comm_shared.get());
    of = b.communicator ? "comm_shared needs" : "shared and comm_shared together need";
  }
  b.rings = rings;
  const double limit = w.ask.parameter("smem_bytes_per_sm");
  if (double(claimed) > limit)
    report_fault(nullptr, "setup", printf_string("%s %zu bytes of shared memory and a block has %.0f: use fewer stages or "
                                                 "smaller tiles", of.c_str(), claimed, limit));
}

bool runs(const block& b, role which) {
  if (which == role::communicator) return b.communicator || has_inside_communicator();
  return !b.communicator;
}

void add_block(rank_state& r, int rank, int index, double at) {
  auto b = std::make_unique<block>();
  b->rank = rank, b->index = index, b->launch = r.launch;
  b->communicator = index >= w.ask.sms_of(rank) - pk_program.comm_sms;
  b->tensor_free = b->tma_free = b->link_free = b->memory_free = at;
  construct_shared(*b);
  ++r.live_blocks;
  for (role which : {role::loader, role::consumer, role::storer, role::communicator})
    if (pk_program.has[int(which)] && runs(*b, which)) add_fiber(r, *b, which, at);
  if (b->live == 0) --r.live_blocks;
  r.blocks.push_back(std::move(b));
}

void place_block(rank_state& r, int rank, double at) {
  const int index = r.to_place.front();
  r.to_place.pop_front();
  add_block(r, rank, index, at);
}

std::deque<int> in_order_of_placement(int blocks) {
  std::deque<int> order;
  for (int i = 0; i < blocks; ++i) order.push_back(i);
  std::mt19937_64 random(w.ask.placement);
  for (std::size_t i = order.size(); w.ask.placement != 0 && i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

void start_launch(int rank, double at) {
  rank_state& r = w.ranks[rank];
  past known;
  if (r.launch >= 0) known = r.ended[std::size_t(r.launch)];
  if (r.peers_bound)  // the barrier at the exit of the launch before
    for (const rank_state& peer : w.ranks) known.join(peer.ended[std::size_t(r.launch)]);
  r.began.push_back(std::move(known));
  for (auto& f : r.fibers) w.free_stacks.push_back(f->stack);
  r.fibers.clear();
  r.blocks.clear();
  ++r.launch;
  r.peers_bound = false;
  run_setup(rank);
  load_inputs(rank);
  order::host_begins(rank);
  const int sms = w.ask.sms_of(rank);
  if (pk_program.comm_sms >= sms)
    report_fault(nullptr, "setup", printf_string("comm_sms is %d and the machine has %d SMs: none is left to compute",
                                                 pk_program.comm_sms, sms));
  r.entered = r.launch + 1;
  r.entered_at = r.left_at = r.used.started = at;
  w.m->begin(rank);
  r.to_place = in_order_of_placement(sms);
  const int at_a_time = w.ask.resident > 0 ? std::min(w.ask.resident, sms) : sms;
  while (r.live_blocks < at_a_time && !r.to_place.empty()) place_block(r, rank, at);
  if (r.live_blocks == 0) report_fault(nullptr, "setup", "no block of this kernel has a role to run");
  const double open = last_entry() + door_us();
  std::vector<fiber*> waiting;
  waiting.swap(w.at_the_door);
  for (fiber* f : waiting) w.m->ready(*f, open);  // each looks again
}

}  // namespace

void claim_shared(std::size_t bytes) { claimed += bytes; }

void ring_init(ring_core& r, int depth) {
  r = ring_core{};
  r.depth = depth, r.id = int(rings.size());
  rings.push_back(&r);
}

void launch_left(int rank) {
  rank_state& r = w.ranks[rank];
  r.ended.emplace_back();
  for (const auto& f : r.fibers) r.ended.back().join(f->known);
  r.left = r.launch + 1;
}

bool everything_finished() {
  return std::all_of(w.ranks.begin(), w.ranks.end(), [](const rank_state& r) { return r.finished == w.ask.launches; });
}

bool advance_launches() {
  bool changed = false;
  for (int rank = 0; rank < w.ask.world; ++rank) {
    rank_state& r = w.ranks[rank];
    if (r.left > r.finished && (!r.peers_bound || all_left(r.left))) {
      r.finished = r.left;
      const double at = r.peers_bound ? hears_of_all(rank) : r.left_at;
      r.used.finished = at;
      order::host_ends(rank, r.peers_bound);
      save_outputs(rank);
      changed = true;
    }
    if (r.finished == r.launch + 1 && r.finished < w.ask.launches) {
      start_launch(rank, r.launch < 0 ? 0 : r.used.finished);
      changed = true;
    }
  }
  return changed;
}

}  // namespace pk::sim
