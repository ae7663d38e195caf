// Vector clocks. What a worker knows to be over is counted per agent. Agents are the positions of roles
// (rank, block, role), used again by every launch, and companions for what goes on beside a role: the reads and the
// landings of its bulk stores, its wgmmas, the bulk loads of a ring. Every access of an agent is one tick, so an
// epoch also names the access.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace pk::sim {

// One access of one agent. Times start at 1; 0 is no access.
struct epoch {
  std::uint32_t agent = 0, time = 0;
  bool beside = false;  // of a companion: an asynchronous operation that is over when somebody has observed it
  bool operator==(const epoch&) const = default;
};

class clock {
 public:
  std::uint32_t operator[](std::uint32_t agent) const { return agent < times_.size() ? times_[agent] : 0; }

  void raise(std::uint32_t agent, std::uint32_t time) {
    if (agent >= times_.size()) times_.resize(agent + 1, 0);
    if (times_[agent] < time) times_[agent] = time;
  }

  void join(const clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size(), 0);
    std::uint32_t* __restrict to = times_.data();
    const std::uint32_t* __restrict from = other.times_.data();
    for (std::size_t i = 0, n = other.times_.size(); i < n; ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
  }

  // The same, but for one agent.
  clock with(std::uint32_t agent, std::uint32_t time) const {
    clock other = *this;
    if (agent < times_.size()) other.times_[agent] = time;
    return other;
  }

  std::size_t size() const { return times_.size(); }
  bool operator==(const clock&) const = default;

 private:
  std::vector<std::uint32_t> times_;
};

// What is over, as the two proxies see it. `landed` counts companions: whoever observes that an asynchronous
// operation is complete has it ordered before its accesses of either proxy. `seen` and `fenced` count roles: what
// plain accesses come after, and what asynchronous operations do, which takes a proxy fence on the way.
struct views {
  clock seen, fenced, landed;

  void join(const views& other) {
    seen.join(other.seen);
    fenced.join(other.fenced);
    landed.join(other.landed);
  }

  bool operator==(const views&) const = default;

  bool covers(const epoch& e, bool asynchronous) const {
    return (e.beside ? landed : asynchronous ? fenced : seen)[e.agent] >= e.time;
  }
};

// What a signal carries.
using stamp = std::shared_ptr<const views>;

}  // namespace pk::sim
