// What happens before what. Every thread, every thread's bulk stores, every mbarrier's loads and every warp's
// wgmma reads are one component each of a vector of counts.
//
// A thread knows three such vectors. `seen`: what its next ordinary access comes after. `shared`: of what it has
// seen, the ordinary accesses to shared memory that its next asynchronous operation comes after too, because the
// thread that made them executed a proxy fence since. `global`: the same for global memory, where the fence
// must be behind the acquire: executed in this block.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace pk::emulated {

class counts {
 public:
  std::uint32_t operator[](std::size_t i) const { return i < at_.size() ? at_[i] : 0; }
  void raise(std::size_t i, std::uint32_t to) {
    if (i >= at_.size()) at_.resize(i + 1);
    if (at_[i] < to) at_[i] = to;
  }
  void join(const counts& other) {
    if (other.at_.size() > at_.size()) at_.resize(other.at_.size());
    for (std::size_t i = 0; i < other.at_.size(); ++i) at_[i] = at_[i] < other.at_[i] ? other.at_[i] : at_[i];
  }

 private:
  std::vector<std::uint32_t> at_;
};

struct knowledge {
  counts seen, shared, global;
  mutable std::shared_ptr<const knowledge> fenced;  // the same with global = seen, made once for all threads
};
using known = std::shared_ptr<const knowledge>;

// What a thread knows at some moment. Its own counts are beside the vectors, so that threads which leave a
// barrier together share theirs.
struct stamp {
  int thread = -1;
  known base;
  std::uint32_t now = 0, shared = 0, global = 0;  // of the thread itself

  void add_to(knowledge& k, bool same_block) const {
    k.seen.join(base->seen);
    k.seen.raise(std::size_t(thread), now);
    if (!same_block) return;
    k.shared.join(base->shared);
    k.shared.raise(std::size_t(thread), shared);
    k.global.join(base->global);
    k.global.raise(std::size_t(thread), global);
  }
};

// The threads that released something; a later stamp of a thread takes the place of its earlier one.
class releases {
 public:
  void add(const stamp& s) {
    for (stamp& old : stamps_)
      if (old.thread == s.thread) {
        old = s, last_from_ = nullptr;
        return;
      }
    stamps_.push_back(s), last_from_ = nullptr;
  }
  void add(const releases& other) {
    for (const stamp& s : other.stamps_) add(s);
  }
  void clear() { stamps_.clear(), last_from_ = nullptr; }
  bool empty() const { return stamps_.empty(); }
  std::size_t size() const { return stamps_.size(); }

  // What somebody of the same block who knows `from` knows after an acquire; component `loads` has reached
  // `count`, if there is one. The threads of a group know the same, so the last answer is kept.
  known acquired(const known& from, int loads, std::uint32_t count) const;

 private:
  std::vector<stamp> stamps_;
  mutable known last_from_, last_to_;
  mutable std::uint32_t last_count_ = 0;
};

}  // namespace pk::emulated
