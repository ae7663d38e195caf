// The tree of choices of the exhaustive search, and the record of one run that it grows by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "explore.h"

namespace pk::sim {

inline constexpr std::size_t most_events = 4096, most_output_sets = 16;
inline constexpr double shortest_wall = 0.05;      // s
inline constexpr std::uint64_t shortest_horizon = 64;  // of PCT, when nothing has run that could tell
inline constexpr const char *finding_file = "finding.json", *finished_file = "finished.json";  // reports of one run

// What a run writes while it runs, in memory that it shares with the search.
struct shared_record {
  struct entry {
    event what;
    std::uint32_t choice;
    std::uint64_t before[most_events / 64], all[most_events / 64];
  };
  std::size_t size;
  branch end;
  std::uint64_t steps, outputs;
  entry entries[most_events];

  void reset();
  bool add(const event&, std::size_t choice, const past& before, const past& all);  // false when it is full
  std::string schedule() const;  // the choices that were not the first, as a replay takes them
};

// Where the search stands: the path of the last run, with what is still to be tried at each event of it.
class search {
 public:
  const std::vector<std::uint64_t>& path() const { return path_; }  // processes, in order, of the next run's beginning
  const std::vector<event>& asleep() const { return asleep_; }      // what must not come first after that

  // Takes in the record of a run that followed path(); false when nothing is left to try.
  bool advance(const shared_record&);

 private:
  struct node {
    event chosen;
    std::vector<event> asleep, tried, todo;  // on entry; explored; to be explored, the chosen one included
    past before, all;
  };

  void reversals_of(std::size_t j);
  bool race(std::size_t i, std::size_t j) const;
  void try_before(std::size_t i, std::size_t j);

  std::vector<node> nodes_;
  std::vector<std::uint64_t> path_;
  std::vector<event> asleep_;
};

}  // namespace pk::sim
