// What happened before: a set of the events of one run, by number. Empty sets cost nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pk::sim {

class past {
 public:
  void add(std::size_t event) {
    if (words_.size() <= event / 64) words_.resize(event / 64 + 1);
    words_[event / 64] |= std::uint64_t{1} << event % 64;
  }

  void join(const past& other) {
    if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
    for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  }

  bool has(std::size_t event) const {
    return event / 64 < words_.size() && (words_[event / 64] >> event % 64 & 1) != 0;
  }

  const std::vector<std::uint64_t>& words() const { return words_; }
  void assign(const std::uint64_t* words, std::size_t n) { words_.assign(words, words + n); }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace pk::sim
