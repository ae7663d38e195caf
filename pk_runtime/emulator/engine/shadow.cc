// Races: every word of memory remembers who touched it since it was last written in order, and each new access
// must come after those that it conflicts with.
#include <array>
#include <cstring>
#include <optional>

#include "memory.h"
#include "report.h"

namespace pk::emulated {

std::size_t arena_offset(const void* at);

namespace {

struct cell {
  std::vector<past_access> all;
};
constexpr std::size_t words_of_page = 1024;
std::unordered_map<std::size_t, std::unique_ptr<std::array<cell, words_of_page>>> pages;

cell& cell_of(std::size_t word) {
  static std::size_t last = ~std::size_t(0);
  static std::array<cell, words_of_page>* page = nullptr;
  if (word / words_of_page != last) {
    auto& found = pages[last = word / words_of_page];
    if (!found) found = std::make_unique<std::array<cell, words_of_page>>();
    page = found.get();
  }
  return (*page)[word % words_of_page];
}

bool covers(scope s, const thread& a, const thread& b) {
  if (s == scope::sys) return true;
  return a.rank == b.rank && (s == scope::gpu || a.block == b.block);
}

// Strong accesses of scopes that include each other do not race.
bool tolerated(const past_access& p, const manner& now, const thread& t) {
  const thread& other = *m.threads[std::size_t(p.thread)];
  return p.how.strong && now.strong && covers(p.how.wide, other, t) && covers(now.wide, t, other);
}

// Whether the earlier access comes before the one that thread t makes now.
bool ordered(const past_access& p, const manner& now, const thread& t, bool shared) {
  const auto c = std::size_t(p.how.component);
  const knowledge& k = *t.base;
  if (p.how.async) {
    if (now.async && p.how.component == now.component && !p.how.write) return true;
    if (k.seen[c] < p.how.count) return false;
    // Another block's asynchronous work reaches this block's only through a fence here.
    const thread& other = *m.threads[std::size_t(p.thread)];
    const bool elsewhere = other.rank != t.rank || other.block != t.block;
    return !now.async || shared || !elsewhere || k.global[c] >= p.how.count;
  }
  if (!now.async) return p.thread == t.id || k.seen[c] >= p.how.count;
  if (p.thread == t.id) return (shared ? t.shared : t.global) >= p.how.count;
  return (shared ? k.shared : k.global)[c] >= p.how.count;
}

void check(const allocation& a, std::size_t word, const unsigned char* at, const past_access& now, thread& t) {
  std::vector<past_access>& all = cell_of(word).all;
  for (std::size_t i = 0; i < all.size();) {
    const past_access& p = all[i];
    const bool overlap = (p.mask & now.mask) != 0, conflict = overlap && (p.how.write || now.how.write);
    bool before = false;
    if (conflict || (overlap && p.thread == now.thread)) {
      before = ordered(p, now.how, t, a.shared());
      if (conflict && !before && !tolerated(p, now.how, t)) {
        report_race(a, at, p, now, t);
        before = true;  // once is enough
      }
    }
    const bool same = p.how.component == now.how.component && p.how.write == now.how.write &&
                      p.how.async == now.how.async && p.how.strong == now.how.strong;
    const bool covered = (p.mask & ~now.mask) == 0;
    if (covered && (same || (before && now.how.write)))
      all[i] = all.back(), all.pop_back();
    else
      ++i;
  }
  all.push_back(now);
}

}  // namespace

void touch(const void* at, std::size_t bytes, const manner& how, site where) {
  thread& t = *m.running;
  const allocation* a = find_allocation(at);
  const auto* first = static_cast<const unsigned char*>(at);
  if (a == nullptr || first + bytes > a->begin + a->bytes) {
    report_outside(first, bytes, how, where, t);
    stop("fault", "an access outside of every object");
  }
  if (a->shared() && (a->rank != t.rank || a->block != t.block)) {
    report_outside(first, bytes, how, where, t);
    stop("fault", "an access to the shared memory of another block");
  }
  past_access now;
  now.how = how, now.thread = t.id, now.where = where;
  if (!how.async) now.how.component = t.id, now.how.count = t.now;
  const std::size_t begin = arena_offset(at), end = begin + bytes;
  for (std::size_t word = begin / 4; word * 4 < end; ++word) {
    now.mask = 0;
    for (std::size_t b = 0; b < 4; ++b)
      if (word * 4 + b >= begin && word * 4 + b < end) now.mask = std::uint8_t(now.mask | 1u << b);
    check(*a, word, first + (word * 4 > begin ? word * 4 - begin : 0), now, t);
  }
}

void touch_by_host(int rank, const allocation& a, bool write, const char*) {
  thread& host = *m.threads[std::size_t(m.ranks[std::size_t(rank)].host.thread)];
  thread* before = m.running;
  host.base = m.ranks[std::size_t(rank)].host.base, host.now = m.ranks[std::size_t(rank)].host.now;
  m.running = &host;
  manner how;
  how.write = write;
  touch(a.begin, a.bytes, how, 0);
  m.running = before;
}

void forget(const allocation& a) {
  const std::size_t begin = arena_offset(a.begin) / 4;
  for (std::size_t word = begin; word < begin + (a.bytes + 3) / 4; ++word) cell_of(word).all.clear();
}

}  // namespace pk::emulated
