// The exhaustive search; explore.cc says after whom.
#include "search.h"

namespace pk::sim {

namespace {

bool contains(const std::vector<event>& list, const event& e) {
  return std::any_of(list.begin(), list.end(), [&](const event& x) { return x.process == e.process; });
}

// What still sleeps after `chosen`: all of it but what depends on it.
std::vector<event> still_asleep(const std::vector<event>& asleep, const std::vector<event>& tried, const event& chosen) {
  std::vector<event> left;
  for (const auto* list : {&asleep, &tried})
    for (const event& e : *list)
      if (!dependent(e, chosen) && e.process != chosen.process) left.push_back(e);
  return left;
}

}  // namespace

void shared_record::reset() {
  size = 0, steps = 0, outputs = 0;
  end = branch::failed;
}

bool shared_record::add(const event& e, std::size_t choice, const past& before, const past& all) {
  if (size == most_events) return false;
  entry& at = entries[size++];
  at.what = e, at.choice = std::uint32_t(choice);
  auto fill = [](std::uint64_t* to, const past& from) {
    std::fill(to, to + most_events / 64, 0);
    std::copy(from.words().begin(), from.words().end(), to);
  };
  fill(at.before, before), fill(at.all, all);
  return true;
}

std::string shared_record::schedule() const {
  std::string text;
  for (std::size_t i = 0; i < std::min(size, most_events); ++i)
    if (entries[i].choice != 0)
      text += printf_string("%s%zu=%u", text.empty() ? "" : ",", i, entries[i].choice);
  return "exhaustive:" + (text.empty() ? "first" : text);
}

bool search::advance(const shared_record& run) {
  const std::size_t n = std::min(run.size, most_events), known = nodes_.size();
  nodes_.resize(std::max(n, known));
  for (std::size_t i = known == 0 ? 0 : known - 1; i < n; ++i) {
    node& at = nodes_[i];
    at.chosen = run.entries[i].what;
    at.before.assign(run.entries[i].before, most_events / 64);
    at.all.assign(run.entries[i].all, most_events / 64);
    if (i >= known) {
      at.todo = {at.chosen};
      if (i > 0) at.asleep = still_asleep(nodes_[i - 1].asleep, nodes_[i - 1].tried, nodes_[i - 1].chosen);
    }
  }
  for (std::size_t j = known == 0 ? 0 : known - 1; j < n; ++j) reversals_of(j);
  for (; !nodes_.empty(); nodes_.pop_back()) {
    node& top = nodes_.back();
    top.tried.push_back(top.chosen);
    for (const event& e : top.todo) {
      if (contains(top.tried, e) || contains(top.asleep, e)) continue;
      top.chosen = e;
      path_.clear();
      for (const node& at : nodes_) path_.push_back(at.chosen.process);
      asleep_ = still_asleep(top.asleep, top.tried, e);
      return true;
    }
  }
  return false;
}

void search::reversals_of(std::size_t j) {
  for (std::size_t i = 0; i < j; ++i)
    if (race(i, j)) try_before(i, j);
}

// Whether events i and j could have come in the other order, with nothing in between that orders them: then it matters. A
// wait cannot come before a signal that it needs, unless another takes its place; that other then races with the wait.
bool search::race(std::size_t i, std::size_t j) const {
  const node &a = nodes_[i], &b = nodes_[j];
  if (!dependent(a.chosen, b.chosen) || b.before.has(i)) return false;
  if (b.chosen.wait && b.chosen.surplus == 0) return false;
  for (std::size_t k = i + 1; k < j; ++k)
    if (dependent(nodes_[k].chosen, b.chosen) && nodes_[k].all.has(i)) return false;
  return true;
}

// Sees to it that j is tried before i: by beginning, instead of i, with what does not follow from i and leads to j.
void search::try_before(std::size_t i, std::size_t j) {
  std::vector<std::size_t> leads;
  for (std::size_t k = i + 1; k < j; ++k)
    if (!nodes_[k].all.has(i)) leads.push_back(k);
  leads.push_back(j);
  node& at = nodes_[i];
  for (std::size_t k : leads) {
    const node& first = nodes_[k];
    const bool begins = std::none_of(leads.begin(), leads.end(), [&](std::size_t m) { return m < k && first.all.has(m); });
    if (begins && contains(at.todo, first.chosen)) return;
  }
  at.todo.push_back(nodes_[leads.front()].chosen);
}

}  // namespace pk::sim
