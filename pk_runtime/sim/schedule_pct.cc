// Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010). Every worker and every
// pending operation has a random priority, and the highest goes next. At depth - 1 random points of the run the one that
// would go next falls below all others. A defect that needs `depth` orderings shows with a probability of at least
// 1 / (n k^(depth - 1)), for n workers and operations and k steps: `horizon` is the guess at k.
#include <algorithm>
#include <unordered_map>

#include "schedule.h"

namespace pk::sim {

namespace {

class pct final : public schedule {
 public:
  pct(std::uint64_t seed, int depth, std::uint64_t horizon) : random_(seed * 0x9e3779b97f4a7c15ull + 2) {
    for (int i = 1; i < depth; ++i) change_at_.push_back(1 + random_() % std::max<std::uint64_t>(horizon, 1));
  }

  step next(const std::deque<fiber*>& runnable, const std::vector<operation>& pending) override {
    ++taken_;
    for (std::size_t i = 0; i < change_at_.size(); ++i)
      if (change_at_[i] == taken_) priority_[id_of(highest(runnable, pending), runnable, pending)] = i;
    return highest(runnable, pending);
  }

  bool interrupts() override { return true; }
  bool hurries() const override { return true; }

 private:
  static std::uint64_t id_of(step s, const std::deque<fiber*>& runnable, const std::vector<operation>& pending) {
    return s.kind == step::resume ? runnable[s.index]->id : pending[s.index].id;
  }

  step highest(const std::deque<fiber*>& runnable, const std::vector<operation>& pending) {
    step best{step::resume, 0};
    std::uint64_t most = 0;
    auto offer = [&](step s, std::uint64_t id) {
      auto [at, fresh] = priority_.try_emplace(id, 0);
      if (fresh) at->second = lowest_drawn + random_() / 2;
      if (at->second + 1 > most) most = at->second + 1, best = s;
    };
    for (std::size_t i = 0; i < runnable.size(); ++i) offer({step::resume, i}, runnable[i]->id);
    for (std::size_t i = 0; i < pending.size(); ++i) {
      if (pending[i].done()) return {step::land, i};  // nothing is left of it
      offer({step::land, i}, pending[i].id);
    }
    return best;
  }

  static constexpr std::uint64_t lowest_drawn = 1 << 10;  // below it are those that fell
  std::mt19937_64 random_;
  std::vector<std::uint64_t> change_at_;
  std::unordered_map<std::uint64_t, std::uint64_t> priority_;
  std::uint64_t taken_ = 0;
};

}  // namespace

std::unique_ptr<schedule> make_pct(std::uint64_t seed, int depth, std::uint64_t horizon) {
  return std::make_unique<pct>(seed, depth, horizon);
}

}  // namespace pk::sim
