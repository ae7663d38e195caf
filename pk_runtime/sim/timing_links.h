// The ports of all ranks as a fluid: what crosses at a time shares the ports fairly, as the packets of many SMs
// do that take turns. So blocks that begin together end together, and while they all wait for something else
// a port stands idle: that a serial queue would not show.
#pragma once

#include <functional>
#include <queue>
#include <vector>

#include "timing_costs.h"

namespace pk::sim {

enum class mechanism { push, store, load, reduce };  // bulk copies, registers, either way from a peer, bulk adds
inline constexpr int mechanisms = 4;

class links {
 public:
  using done = std::function<void(double)>;

  links(int ranks, const costs& rates);

  // `bytes` go out of `from` and into `to` from time `at` on, which is not in the past; `then` hears when the last
  // has passed.
  void send(int from, int to, mechanism how, double bytes, double at, done then);

  double rate(mechanism how) const { return rates_[int(how)]; }  // of a port that moves nothing else

  double next() const { return next_; }  // of what changes next; infinity when nothing is under way
  void advance();                        // to that

 private:
  struct flow {
    double ends;  // on the clock of its stream
    std::uint64_t order;
    done then;
    bool operator<(const flow& o) const { return ends != o.ends ? ends > o.ends : order > o.order; }
  };
  // All flows between two ranks by one mechanism have the same rate; `passed` is what each of them has moved.
  struct stream {
    int from = 0, to = 0;
    double weight = 1, most = 0, passed = 0, rate = 0;
    std::priority_queue<flow> flows;
  };
  struct arrival {
    double at;
    std::uint64_t order;
    int stream;
    double bytes;
    done then;
    bool operator<(const arrival& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  void move_to(double at);
  void share();

  int ranks_;
  double rates_[mechanisms];
  std::vector<stream> streams_;
  std::vector<int> active_;
  std::priority_queue<arrival> arrivals_;
  std::vector<double> capacity_, left_;
  std::vector<int> waiting_;
  double now_ = 0, next_;
  std::uint64_t order_ = 0;
};

}  // namespace pk::sim
