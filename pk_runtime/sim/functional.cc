// Functional mode: real arithmetic, data moves. Asynchronous operations are pending until the schedule lets them take
// effect, at the latest when something that needs them cannot go on.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "schedule.h"

namespace pk::sim {

namespace {

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

// The lists of runnable fibers and pending operations are in no order, but for the first runnable fiber: when only first
// ones are resumed, that is the one that has waited longest.
class functional final : public machine {
 public:
  functional() : schedule_(make_schedule(w.ask.schedule)) {}

  void load(fiber& f, ring_core& ring, int slot, const tile_ref& tile, const tensor_ref& src, coord at) override {
    operation op(operation::load, rank_of(f));
    op.ring = &ring, op.slot = slot, op.tile = tile, op.src = src, op.at = at;
    ++ring.loads_in_flight[slot];
    std::memset(tile.data, 0xff, std::size_t(tile.rows) * tile.cols * element_bytes(tile.type));  // NaN until it lands
    issue(f, std::move(op));
  }

  void store(fiber& f, std::shared_ptr<pending_store> s) override {
    operation op(operation::store, rank_of(f));
    op.stored = s;
    f.stores.push_back(std::move(s));
    issue(f, std::move(op));
  }

  double load_slab(fiber& f, const tile_ref& v, const tensor_ref& src, coord at) override {
    if (schedule_->interrupts()) {
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

  void post_signal(fiber& f, counters& c, int target, int slot, bool) override {
    operation op(operation::signal, rank_of(f));
    op.counter = &c, op.slot = slot, op.launch = f.home->launch;
    op.carried = order::publish(f, c, target, slot);
    issue(f, std::move(op));
  }

  void ready(fiber& f, double) override { runnable_.push_back(&f); }
  void begin(int) override {}

  // A kernel is complete only when its writes and signals are.
  void end(int rank) override { leaving_.push_back(rank), leave(); }

  bool pauses_at_waits() const override { return schedule_->waits_are_steps(); }

  void publish(const fiber& f, const void* what, std::uint64_t number) override {
    if (pauses_at_waits()) handed_over_[{what, number, f.home->launch}] = f.known;
  }

  void observe(fiber& f, const void* what, std::uint64_t number) override {
    if (pauses_at_waits()) f.known.join(handed_over_[{what, number, f.home->launch}]);
  }

  void run() override {
    while (!everything_finished()) {
      if (runnable_.empty() && pending_.empty()) {
        if (!advance_launches()) report_deadlock();
        continue;
      }
      const step s = schedule_->next(runnable_, pending_);
      if (s.kind == step::land) {
        land_at(s.index);
        leave();
      } else {
        resume(*take(s.index));
      }
      if (runnable_.empty() || schedule_->hurries()) advance_launches();
    }
    finish_run();
  }

 private:
  fiber* take(std::size_t i) {
    fiber* f = runnable_[i];
    if (i == 0) {
      runnable_.pop_front();
    } else {
      runnable_[i] = runnable_.back();
      runnable_.pop_back();
    }
    return f;
  }

  // Who has no blocks left and nothing pending has left the launch.
  void leave() {
    std::erase_if(leaving_, [this](int rank) {
      if (std::any_of(pending_.begin(), pending_.end(), [=](const operation& op) { return op.rank == rank; })) return false;
      launch_left(rank);
      return true;
    });
  }

  void issue(fiber& f, operation op) {
    op.id = f.id + ++f.issued;
    op.known = f.known;
    if (schedule_->lands_at_once()) perform(op);
    else pending_.push_back(std::move(op));
  }

  void land_at(std::size_t i) {
    operation op = std::move(pending_[i]);
    if (i + 1 != pending_.size()) pending_[i] = std::move(pending_.back());
    pending_.pop_back();
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

  std::unique_ptr<schedule> schedule_;
  std::deque<fiber*> runnable_;
  std::vector<operation> pending_;
  std::vector<int> leaving_;  // ranks
  std::map<std::tuple<const void*, std::uint64_t, int>, past> handed_over_;
};

}  // namespace

std::unique_ptr<machine> make_functional() { return std::make_unique<functional>(); }

}  // namespace pk::sim
