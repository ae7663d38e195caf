#include "shadow.h"

#include <algorithm>

#include "race.h"

namespace pk::sim {

namespace {
constexpr std::size_t cell_bytes = 16;
}

shadow::state shadow::after(const state& s, const attempt& a, std::size_t byte) {
  const auto over = [&](const epoch& e) { return a.after->covers(e, a.asynchronous); };
  const auto expect = [&](const epoch& e) {
    if (e.time != 0 && !over(e)) found_race(e, a, byte, e == s.write ? s.replaced : s.write);
  };
  expect(s.write);
  if (a.what->does == action::write) {
    for (const epoch& e : s.adds) expect(e);
    for (const epoch& e : s.reads) expect(e);
    return {a.when, s.write, {}, {}};
  }
  state result{s.write, s.replaced, {}, {}};
  if (a.what->does == action::read) {
    result.adds = s.adds;
    for (const epoch& e : s.adds) expect(e);
    // Whoever comes after this read also comes after those that it comes after.
    for (const epoch& e : s.reads)
      if (!over(e) && (e.agent != a.when.agent || e.beside != a.when.beside)) result.reads.push_back(e);
    result.reads.push_back(a.when);
  } else {
    for (const epoch& e : s.reads) expect(e);
    for (const epoch& e : s.adds) {
      if (over(e)) continue;
      if (e.agent != a.when.agent) result.adds.push_back(e);
      found_unordered_adds(e, a);
    }
    result.adds.push_back(a.when);
  }
  return result;
}

std::uint32_t shadow::next(std::uint32_t from, const attempt& a, std::size_t byte) {
  for (auto known = steps_.rbegin(); known != steps_.rend(); ++known)
    if (known->first == from) return known->second;
  states_.push_back(after(states_[from], a, byte));
  steps_.emplace_back(from, std::uint32_t(states_.size() - 1));
  return steps_.back().second;
}

void shadow::range(object& o, const attempt& a, std::size_t first, std::size_t last) {
  const std::size_t end = (last + cell_bytes - 1) / cell_bytes;
  if (o.cells.size() < end) o.cells.resize(end, 0);
  std::uint32_t* const cells = o.cells.data();
  for (std::size_t i = first / cell_bytes; i < end;) {
    const std::uint32_t old = cells[i], fresh = next(old, a, i * cell_bytes);
    for (; i < end && cells[i] == old; ++i) cells[i] = fresh;
  }
}

void shadow::rows(object& o, const attempt& a, std::size_t first, std::size_t bytes, std::size_t stride, int count) {
  steps_.clear();
  if (bytes == stride) return range(o, a, first, first + bytes * std::size_t(count));
  for (int r = 0; r < count; ++r, first += stride) range(o, a, first, first + bytes);
}

void shadow::cell(std::uint32_t& cell, const attempt& a) {
  steps_.clear();
  cell = next(cell, a, 0);
}

}  // namespace pk::sim
