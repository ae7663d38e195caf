// The L2 cache of each rank as a least-recently-used list of 64-row x 128-byte boxes of its own memory.
#pragma once

#include <cstdint>
#include <vector>

namespace pk::sim {

class l2_cache {
 public:
  l2_cache(int ranks, std::int64_t capacity_boxes) : lists_(std::size_t(ranks)), capacity_(capacity_boxes) {}

  // Marks the box as just used; true when it was present.
  bool touch(int rank, std::int64_t box) {
    if (box >= std::int64_t(nodes_.size())) nodes_.resize(std::size_t(box) + 1);
    list& l = lists_[std::size_t(rank)];
    const bool hit = nodes_[std::size_t(box)].present;
    if (hit) unlink(l, box);
    else if (l.size == capacity_) evict(l);
    push_front(l, box);
    return hit;
  }

 private:
  struct node {
    std::int64_t newer = -1, older = -1;
    bool present = false;
  };
  struct list {
    std::int64_t newest = -1, oldest = -1, size = 0;
  };

  node& at(std::int64_t box) { return nodes_[std::size_t(box)]; }

  void unlink(list& l, std::int64_t box) {
    node& n = at(box);
    (n.newer < 0 ? l.newest : at(n.newer).older) = n.older;
    (n.older < 0 ? l.oldest : at(n.older).newer) = n.newer;
    n.present = false;
    --l.size;
  }

  void evict(list& l) { unlink(l, l.oldest); }

  void push_front(list& l, std::int64_t box) {
    node& n = at(box);
    n = {-1, l.newest, true};
    (l.newest < 0 ? l.oldest : at(l.newest).newer) = box;
    l.newest = box;
    ++l.size;
  }

  std::vector<list> lists_;
  std::vector<node> nodes_;
  std::int64_t capacity_;
};

}  // namespace pk::sim
