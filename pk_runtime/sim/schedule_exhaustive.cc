// One run of the exhaustive search: follows the choices it is given, then goes on with what is not asleep, and records
// every event with what happened before it. explore.cc makes of the record what is to be tried next.
//
// Events are the arrival of a signal and the passing of a wait. Everything else that workers do is the same in every
// order of these (see docs/decisions/0009-schedules.md) and is done as soon as it can be.
#include <algorithm>

#include "explore.h"
#include "schedule.h"

namespace pk::sim {

namespace {

bool passes_a_wait(const fiber& f) { return f.reason == waiting_for::signal || f.reason == waiting_for::barrier; }

struct option {
  event what;
  step how;
};

class exhaustive final : public schedule {
 public:
  explicit exhaustive(const plan& p) : plan_(p) {}

  step next(const std::deque<fiber*>& runnable, const std::vector<operation>& pending) override {
    step hidden{};
    if (without_choice(runnable, pending, hidden)) return hidden;
    std::vector<option> options = choices(runnable, pending);
    const std::size_t chosen = choose(options);
    option& o = options[chosen];
    record(o, chosen, o.how.kind == step::resume ? runnable[o.how.index] : nullptr,
           o.how.kind == step::land ? &pending[o.how.index] : nullptr);
    return o.how;
  }

  bool interrupts() override { return false; }
  bool hurries() const override { return true; }
  bool waits_are_steps() const override { return true; }

 private:
  struct counted {
    past signals, waits;
  };

  // Workers go on until they wait; what is loaded and posted arrives, what is stored stays away for as long as it may.
  static bool without_choice(const std::deque<fiber*>& runnable, const std::vector<operation>& pending, step& out) {
    for (std::size_t i = 0; i < runnable.size(); ++i)
      if (!passes_a_wait(*runnable[i])) return out = {step::resume, i}, true;
    for (std::size_t i = 0; i < pending.size(); ++i) {
      const operation& op = pending[i];
      const bool stays = op.kind == operation::signal || (op.kind == operation::store && op.stored->mail == nullptr);
      if (op.done() || !stays) return out = {step::land, i}, true;
    }
    // Nothing is left but stores whose issuers wait for something else.
    const bool some = !runnable.empty() || std::any_of(pending.begin(), pending.end(), [](const operation& op) {
      return op.kind == operation::signal;
    });
    return out = {step::land, 0}, !some;
  }

  static std::vector<option> choices(const std::deque<fiber*>& runnable, const std::vector<operation>& pending) {
    std::vector<option> found;
    for (std::size_t i = 0; i < runnable.size(); ++i) {
      const fiber& f = *runnable[i];
      found.push_back({event{.process = f.id, .object = f.counter->key(f.counter->index(f.slot, f.home->launch)),
                             .wait = true}, {step::resume, i}});
    }
    for (std::size_t i = 0; i < pending.size(); ++i) {
      const operation& op = pending[i];
      if (op.kind != operation::signal) continue;
      found.push_back({event{.process = op.id, .object = op.counter->key(op.counter->index(op.slot, op.launch)),
                             .wait = false}, {step::land, i}});
    }
    // Waits first: then a wait sees no more signals than it needs, which is where most goes wrong.
    std::sort(found.begin(), found.end(), [](const option& a, const option& b) {
      return a.what.wait != b.what.wait ? a.what.wait : a.what.process < b.what.process;
    });
    return found;
  }

  std::size_t choose(const std::vector<option>& options) {
    const std::size_t at = events_;
    if (plan_.follow != nullptr) {  // part of a search
      if (at < plan_.follow->size()) {
        for (std::size_t i = 0; i < options.size(); ++i)
          if (options[i].what.process == (*plan_.follow)[at]) return i;
        end_of_branch(branch::diverged);
      }
      if (at == plan_.follow->size()) asleep_ = *plan_.asleep;
      for (std::size_t i = 0; i < options.size(); ++i)
        if (!sleeps(options[i].what)) return i;
      end_of_branch(branch::redundant);
    }
    for (const auto& [where, which] : plan_.choices)  // a replay
      if (std::size_t(where) == at) {
        if (std::size_t(which) < options.size()) return std::size_t(which);
        report_fault(nullptr, "request", printf_string("the schedule does not belong to this kernel, shape and grid: choice %d "
                                                       "is %d and there are %zu", where, which, options.size()));
      }
    return 0;
  }

  bool sleeps(const event& e) const {
    return std::any_of(asleep_.begin(), asleep_.end(), [&](const event& s) { return s.process == e.process; });
  }

  void record(option& o, std::size_t chosen, fiber* waiter, const operation* signal) {
    event& e = o.what;
    std::erase_if(asleep_, [&](const event& s) { return dependent(s, e); });
    counted& c = counted_[e.object];
    past before, direct;
    if (e.wait) {
      const counters& at = *waiter->counter;
      e.surplus = at.value[at.index(waiter->slot, waiter->home->launch)] - at.base(waiter->home->launch) - waiter->wanted;
      before = waiter->known, direct = c.signals;
    } else {
      before = signal->known, direct = c.waits;
    }
    past all = before;
    all.join(direct);
    record_event(e, chosen, before, all);
    all.add(events_);
    (e.wait ? c.waits : c.signals).join(all);
    if (e.wait) waiter->known = all;
    ++events_;
  }

  const plan& plan_;
  std::size_t events_ = 0;
  std::vector<event> asleep_;
  std::map<std::uint64_t, counted> counted_;
};

}  // namespace

std::unique_ptr<schedule> make_exhaustive(const plan& p) { return std::make_unique<exhaustive>(p); }

}  // namespace pk::sim
