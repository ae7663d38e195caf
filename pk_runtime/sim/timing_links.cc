// Links as a fluid: max-min fair shares, recomputed when a transfer begins or ends. The cost of an event depends on
// the number of pairs of ranks, not on that of the transfers under way.
#include "timing_links.h"

#include <algorithm>
#include <limits>

#include "trace.h"

namespace pk::sim {

namespace {
constexpr double never = std::numeric_limits<double>::infinity();
}

links::links(int ranks, const costs& rates)
    : ranks_(ranks), rates_{rates.out, rates.store, rates.load, rates.reduce},
      streams_(std::size_t(ranks) * ranks * mechanisms), capacity_(std::size_t(ranks) * 2),
      left_(std::size_t(ranks) * 2), waiting_(std::size_t(ranks) * 2), next_(never) {
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      for (int how = 0; how < mechanisms; ++how) {
        stream& s = streams_[std::size_t(from * ranks + to) * mechanisms + how];
        s.from = from, s.to = ranks + to;
        s.weight = std::max(1.0, rates.out / rates_[how]);  // what a byte takes of a port, in bytes of bulk copies
        s.most = (how == int(mechanism::load) ? rates.sm_link_load : rates.sm_link) * s.weight;
      }
  for (int r = 0; r < ranks; ++r) capacity_[r] = rates.out, capacity_[ranks + r] = rates.in;
}

void links::send(int from, int to, mechanism how, double bytes, double at, done then) {
  arrivals_.push({std::max(at, now_), order_++, (from * ranks_ + to) * mechanisms + int(how), bytes, std::move(then)});
  next_ = std::min(next_, arrivals_.top().at);
}

void links::advance() {
  move_to(next_);
  std::vector<done> finished;
  bool changed = false;
  while (!arrivals_.empty() && arrivals_.top().at <= now_) {
    arrival a = arrivals_.top();
    arrivals_.pop();
    stream& s = streams_[a.stream];
    if (s.flows.empty()) s.passed = 0, active_.push_back(a.stream);
    s.flows.push({s.passed + a.bytes * s.weight, a.order, std::move(a.then)});
    changed = true;
  }
  constexpr double crumb = 1e-3;  // bytes: below what the clock resolves
  for (int i : active_) {
    stream& s = streams_[i];
    for (; !s.flows.empty() && s.flows.top().ends <= s.passed + crumb; s.flows.pop(), changed = true)
      finished.push_back(s.flows.top().then);
  }
  if (changed) share();
  for (const done& then : finished) then(now_);
}

void links::move_to(double at) {
  for (int i : active_) {
    stream& s = streams_[i];
    const double bytes = s.rate * (at - now_) * double(s.flows.size()) / s.weight;
    const double busy = bytes / rates_[i % mechanisms];
    trace_port(s.from, port::link_out, now_, at, busy, bytes);
    trace_port(s.to - ranks_, port::link_in, now_, at, busy, bytes);
    s.passed += s.rate * (at - now_);
  }
  now_ = at;
}

// Raises all rates together; a stream stops at its own limit or when one of its ports is full.
void links::share() {
  std::erase_if(active_, [&](int i) { return streams_[i].flows.empty(); });
  left_ = capacity_;
  std::fill(waiting_.begin(), waiting_.end(), 0);
  std::vector<int> open = active_;
  for (int i : open) {
    const int n = int(streams_[i].flows.size());
    waiting_[streams_[i].from] += n, waiting_[streams_[i].to] += n;
  }
  while (!open.empty()) {
    double least = never;
    for (int i : open) {
      const stream& s = streams_[i];
      least = std::min({least, s.most, left_[s.from] / waiting_[s.from], left_[s.to] / waiting_[s.to]});
    }
    // All that cannot have more get this; the rest share what they leave.
    std::vector<int> fixed;
    std::erase_if(open, [&](int i) {
      const stream& s = streams_[i];
      const double most = std::min({s.most, left_[s.from] / waiting_[s.from], left_[s.to] / waiting_[s.to]});
      if (most > least * (1 + 1e-9)) return false;
      fixed.push_back(i);
      return true;
    });
    for (int i : fixed) {
      stream& s = streams_[i];
      const int n = int(s.flows.size());
      s.rate = least;
      for (int port : {s.from, s.to}) left_[port] = std::max(0.0, left_[port] - n * least), waiting_[port] -= n;
    }
  }
  next_ = arrivals_.empty() ? never : arrivals_.top().at;
  for (int i : active_) {
    const stream& s = streams_[i];
    next_ = std::min(next_, now_ + std::max(0.0, s.flows.top().ends - s.passed) / s.rate);
  }
}

}  // namespace pk::sim
