// Strategies by name.
#include "schedule.h"

namespace pk::sim {

std::unique_ptr<schedule> make_schedule(const request& ask) {
  if (ask.strategy == "eager") return make_eager();
  if (ask.strategy == "latest") return make_latest();
  if (ask.strategy == "random") return make_random(ask.seed, ask.world);
  report_fault(nullptr, "request", "unknown strategy '" + ask.strategy + "': eager, latest and random are known");
}

}  // namespace pk::sim
