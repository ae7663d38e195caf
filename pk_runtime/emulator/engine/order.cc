// Releases, acquires, fences: what carries knowledge from thread to thread, and what comes close to it.
#include "order.h"

#include <algorithm>

#include "machine.h"

namespace pk::emulated {

known releases::acquired(const known& from, int loads, std::uint32_t count) const {
  if (from == last_from_ && count == last_count_) return last_to_;
  auto to = std::make_shared<knowledge>(*from);
  to->fenced = nullptr;
  for (const stamp& s : stamps_) s.add_to(*to, true);
  if (loads >= 0) {
    to->seen.raise(std::size_t(loads), count);
    to->shared.raise(std::size_t(loads), count);
    to->global.raise(std::size_t(loads), count);
  }
  last_from_ = from, last_to_ = to, last_count_ = count;
  return to;
}

namespace {

struct publication {
  stamp what;
  scope wide;
  bool released;
  site where;
};

std::unordered_map<std::uint64_t, std::vector<publication>> locations;

bool together(const thread& a, const thread& b, scope s) {
  if (s == scope::sys) return true;
  if (a.rank != b.rank) return false;
  return s == scope::gpu || a.block == b.block;
}

void remember(thread& t, near_miss miss) {
  if (t.base->seen[std::size_t(miss.of.thread)] >= miss.of.now) return;
  for (near_miss& old : t.misses)
    if (old.why == miss.why && old.of.thread == miss.of.thread) {
      old = miss;
      return;
    }
  t.misses.push_back(miss);
  if (t.misses.size() > 64) t.misses.pop_front();
}

void add(std::vector<publication>& all, const publication& w) {
  for (publication& old : all)
    if (old.what.thread == w.what.thread && old.released == w.released && old.wide == w.wide) {
      old = w;
      return;
    }
  all.push_back(w);
}

}  // namespace

int new_component() {
  m.threads.push_back(nullptr);
  return int(m.threads.size()) - 1;
}

stamp stamp_of(thread& t) {
  const stamp s = {t.id, t.base, t.now, t.shared, t.global};
  ++t.now;
  return s;
}

void acquire(thread& t, const stamp& s, bool same_block) {
  if (s.thread == t.id || (!same_block && t.base->seen[std::size_t(s.thread)] >= s.now)) return;
  auto to = std::make_shared<knowledge>(*t.base);
  to->fenced = nullptr;
  s.add_to(*to, same_block);
  t.base = to;
}

void observe(thread& t, int component, std::uint32_t count) {
  if (component < 0 || t.base->seen[std::size_t(component)] >= count) return;
  auto to = std::make_shared<knowledge>(*t.base);
  to->fenced = nullptr;
  to->seen.raise(std::size_t(component), count);
  to->shared.raise(std::size_t(component), count);
  to->global.raise(std::size_t(component), count);
  t.base = to;
}

void fence_shared(thread& t) { t.shared = t.now++; }

void fence_all(thread& t) {
  t.shared = t.global = t.now++;
  if (!t.base->fenced) {
    auto to = std::make_shared<knowledge>(*t.base);
    to->fenced = nullptr;
    to->global = to->seen;
    t.base->fenced = to;
  }
  t.base = t.base->fenced;
}

void fence_scope(thread& t, scope s) {
  t.fence[int(s)] = stamp_of(t);
  for (int i = 0; i < 4; ++i) {
    for (const stamp& seen : t.unfenced[i]) {
      const thread& author = *m.threads[std::size_t(seen.thread)];
      if (together(t, author, s)) acquire(t, seen, author.rank == t.rank && author.block == t.block);
    }
    t.unfenced[i].clear();
  }
}

void after_store(thread& t, std::uint64_t at, bool release, scope s, bool keeps_others, site where) {
  std::vector<publication>& all = locations[at];
  if (!keeps_others) all.clear();
  if (release) {
    add(all, {stamp_of(t), s, true, where});
    return;
  }
  bool fenced = false;
  for (int i = 0; i < 4; ++i) {
    if (!t.fence[i].base) continue;
    add(all, {t.fence[i], std::min(scope(i), s), true, where});
    fenced = true;
  }
  if (!fenced) add(all, {stamp_of(t), s, false, where});
}

void after_load(thread& t, std::uint64_t at, bool acquires, scope s, site where) {
  const auto found = locations.find(at);
  if (found == locations.end()) return;
  for (const publication& w : found->second) {
    if (w.what.thread == t.id) continue;
    const thread& author = *m.threads[std::size_t(w.what.thread)];
    if (!together(t, author, w.wide) || !together(t, author, s)) {
      remember(t, {near_miss::narrow, w.what, where, w.where});
    } else if (!w.released) {
      remember(t, {near_miss::relaxed_store, w.what, where, w.where});
    } else if (acquires) {
      acquire(t, w.what, author.rank == t.rank && author.block == t.block);
    } else {
      remember(t, {near_miss::relaxed_load, w.what, where, w.where});
      if (t.unfenced[int(s)].size() < 256) t.unfenced[int(s)].push_back(w.what);
    }
  }
}

}  // namespace pk::emulated
