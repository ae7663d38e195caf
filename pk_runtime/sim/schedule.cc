// Strategies by name.
#include "schedule.h"

namespace pk::sim {

std::unique_ptr<schedule> make_schedule(const plan& p) {
  if (p.strategy == "eager") return make_eager();
  if (p.strategy == "latest") return make_latest();
  if (p.strategy == "random") return make_random(p.seed, w.ask.world);
  if (p.strategy == "pct") return make_pct(p.seed, p.depth, p.horizon);
  if (p.strategy == "exhaustive") return make_exhaustive(p);
  report_fault(nullptr, "request",
               "unknown strategy '" + p.strategy + "': eager, latest, random, pct and exhaustive are known");
}

}  // namespace pk::sim
