// Functional mode: real arithmetic under a seeded scheduler. Asynchronous operations wait in a pool and
// take effect when the schedule says so, at the latest when something that needs them cannot go on.
#include <algorithm>
#include <cstring>

#include "world.h"

namespace pk::sim {

namespace {

struct operation {
  enum kind_t { load, store, signal } kind;
  int rank;  // who issued it
  operation(kind_t k, int r) : kind(k), rank(r) {}
  ring_core* ring = nullptr;
  int slot = 0;
  tile_ref tile{};
  tensor_ref src{};
  coord at{0, 0};
  std::shared_ptr<pending_store> stored;
  counters* counter = nullptr;
  stamp carried;
  int launch = 0;
};

void read_source(pending_store& s) {
  if (s.was_read) return;
  const auto* from = static_cast<const unsigned char*>(s.src.data);
  s.snapshot.assign(from, from + std::size_t(s.src.rows) * s.src.cols * element_bytes(s.src.type));
  s.was_read = true;
}

void land(pending_store& s) {
  if (s.landed) return;
  read_source(s);
  s.landed = true;
  if (s.mail != nullptr) deliver(*s.mail, s.launch, s.snapshot, 0);
  else copy_out(s.dst, s.at, s.src, s.snapshot.data(), s.add);
  s.snapshot.clear();
}

// Seed 0 lands everything at once and runs fibers in order; seed 1 lands everything as late as possible;
// the others land with a probability of their own and make one rank slow.
class functional final : public machine {
 public:
  functional() : random_(w.ask.seed * 0x9e3779b97f4a7c15ull + 1), eager_(w.ask.seed == 0) {
    static constexpr double choices[] = {0.0, 0.02, 0.1, 0.3, 0.6};
    land_now_ = w.ask.seed < 2 ? 0 : choices[random_() % 5];
    slow_rank_ = w.ask.seed < 2 ? -1 : int(random_() % std::uint64_t(w.ask.world));
  }

  void load(fiber& f, ring_core& ring, int slot, const tile_ref& tile, const tensor_ref& src, coord at) override {
    operation op(operation::load, rank_of(f));
    op.ring = &ring, op.slot = slot, op.tile = tile, op.src = src, op.at = at;
    ++ring.loads_in_flight[slot];
    std::memset(tile.data, 0xff, std::size_t(tile.rows) * tile.cols * element_bytes(tile.type));  // NaN until it lands
    issue(std::move(op));
  }

  void store(fiber& f, std::shared_ptr<pending_store> s) override {
    operation op(operation::store, rank_of(f));
    op.stored = s;
    f.stores.push_back(std::move(s));
    issue(std::move(op));
  }

  double load_slab(fiber& f, const tile_ref& v, const tensor_ref& src, coord at) override {
    if (!eager_ && chance(between_loads)) {  // others may come between two loads
      ready(f, 0);
      yield(f);
    }
    copy_in(v, src, at);
    return 0;
  }

  void read_letter(fiber&, const letter& l, const tile_ref& v, double) override {
    std::memcpy(v.data, l.data.data(), l.data.size());
  }

  void drain(fiber& f, bool reads_only) override {
    for (auto& s : f.stores) reads_only ? read_source(*s) : land(*s);
    std::erase_if(f.stores, [](const auto& s) { return s->landed; });
  }

  void post_signal(fiber& f, counters& c, int target, int slot) override {
    operation op(operation::signal, rank_of(f));
    op.counter = &c, op.slot = slot, op.launch = f.home->launch;
    op.carried = order::publish(f, c, target, slot);
    issue(std::move(op));
  }

  void ready(fiber& f, double) override { runnable_.push_back(&f); }
  void begin(int) override {}

  void end(int rank) override {  // a kernel is complete only when its writes and signals are
    for (std::size_t i = 0; i < pool_.size();)
      if (pool_[i].rank == rank) land_at(i);
      else ++i;
  }

  void run() override {
    while (!everything_finished()) {
      if (!pool_.empty() && (runnable_.empty() || chance(land_now_))) {
        land_at(random_() % pool_.size());
      } else if (!runnable_.empty()) {
        resume(*pick());
        if (runnable_.empty()) advance_launches();
      } else if (!advance_launches()) {
        report_deadlock();
      }
    }
    finish_run();
  }

 private:
  bool chance(double p) { return p > 0 && double(random_() >> 11) * 0x1p-53 < p; }

  fiber* pick() {
    std::size_t i = 0;
    if (!eager_) {
      i = random_() % runnable_.size();
      for (int tries = 0; tries < 8 && rank_of(*runnable_[i]) == slow_rank_; ++tries) i = random_() % runnable_.size();
    }
    fiber* f = runnable_[i];
    if (eager_) {
      runnable_.pop_front();
    } else {
      runnable_[i] = runnable_.back();
      runnable_.pop_back();
    }
    return f;
  }

  void issue(operation op) {
    if (eager_) perform(op);
    else pool_.push_back(std::move(op));
  }

  void land_at(std::size_t i) {
    operation op = std::move(pool_[i]);
    if (i + 1 != pool_.size()) pool_[i] = std::move(pool_.back());
    pool_.pop_back();
    perform(op);
  }

  void perform(operation& op) {
    if (op.kind == operation::load) {
      copy_in(op.tile, op.src, op.at);
      ring_core& r = *op.ring;
      if (--r.loads_in_flight[op.slot] == 0 && r.waiting_consumer != nullptr && r.committed > r.waited &&
          int(r.waited % r.depth) == op.slot) {
        ready(*r.waiting_consumer, 0);
        r.waiting_consumer = nullptr;
      }
    } else if (op.kind == operation::store) {
      land(*op.stored);
    } else {
      order::arrive(*op.counter, op.slot, op.launch, op.carried);
      deliver(*op.counter, op.slot, op.launch, op.rank, 0);
    }
  }

  static constexpr double between_loads = 0.25;
  std::mt19937_64 random_;
  bool eager_;
  double land_now_;
  int slow_rank_;
  std::deque<fiber*> runnable_;
  std::vector<operation> pool_;
};

}  // namespace

std::unique_ptr<machine> make_functional() { return std::make_unique<functional>(); }

}  // namespace pk::sim
