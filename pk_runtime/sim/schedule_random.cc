// Uniform choices, with a bias drawn per seed: how likely what is pending lands, which rank is slow, and whether ranks
// hurry into the next launch. The latest schedule is the limit in which nothing lands before it must.
#include "schedule.h"

namespace pk::sim {

namespace {

class random_choice final : public schedule {
 public:
  random_choice(std::uint64_t seed, int world) : random_(seed * 0x9e3779b97f4a7c15ull + 1) {
    static constexpr double choices[] = {0.0, 0.02, 0.1, 0.3, 0.6};
    land_now_ = world == 0 ? 0 : choices[random_() % 5];
    slow_rank_ = world == 0 ? -1 : int(random_() % std::uint64_t(world));
    hurries_ = world != 0 && random_() % 2 == 0;
  }

  step next(const std::deque<fiber*>& runnable, const std::vector<operation>& pending) override {
    if (!pending.empty() && (runnable.empty() || chance(land_now_))) return {step::land, random_() % pending.size()};
    std::size_t i = random_() % runnable.size();
    for (int tries = 0; tries < patience && rank_of(*runnable[i]) == slow_rank_; ++tries) i = random_() % runnable.size();
    return {step::resume, i};
  }

  bool interrupts() override { return chance(between_loads); }
  bool hurries() const override { return hurries_; }

 private:
  bool chance(double p) { return p > 0 && double(random_() >> 11) * 0x1p-53 < p; }

  static constexpr double between_loads = 0.25;
  static constexpr int patience = 8;  // how often the slow rank is passed over
  std::mt19937_64 random_;
  double land_now_;
  int slow_rank_;
  bool hurries_;
};

}  // namespace

std::unique_ptr<schedule> make_latest() { return std::make_unique<random_choice>(1, 0); }

std::unique_ptr<schedule> make_random(std::uint64_t seed, int world) {
  return std::make_unique<random_choice>(seed, world);
}

}  // namespace pk::sim
