// Races: two accesses to the same memory, at least one a write, that nothing orders.
#pragma once

#include <string>
#include <vector>

#include "shadow.h"

namespace pk::sim {

// Notes the first race of a run. The run goes on to its end, so that the report can say what the first worker
// published afterwards. `byte` is where in the object, `filled` the last plain
// write to it before either.
void found_race(const epoch& before, const attempt& now, std::size_t byte, const epoch& filled);

// Two reduce-adds to the same memory in no order: no race, but the sum depends on the order of arrival, and adds of
// two ranks to one address are atomic only as far as the hardware makes them so.
void found_unordered_adds(const epoch& before, const attempt& now);

bool race_was_found();
std::vector<std::string> race_fields();   // of the JSON object: kind, both accesses, what is missing
std::string race_summary();
std::vector<std::string> race_notes();    // things worth knowing that are not wrong

}  // namespace pk::sim
