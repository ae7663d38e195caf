// Why two accesses are not ordered, in words, and the report as JSON.
#include "report.h"

#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

namespace pk::emulated {

std::vector<finding> findings;

namespace {

constexpr std::size_t findings_at_most = 24;
std::set<std::tuple<std::string, std::uint64_t, std::uint64_t>> reported;

struct reason {
  std::string kind, missing;
  site culprit = 0;
};

std::string doing(const manner& how, const past_access& p, const allocation& a) {
  const thread& t = *m.threads[std::size_t(p.thread)];
  static const char* const scopes[] = {"cta", "cluster", "gpu", "sys"};
  if (how.async) {
    if (how.component == t.mma_component) return "wgmma reads it (asynchronously)";
    if (how.component == t.reads_component) return "a bulk store reads its source";
    if (how.component == t.writes_component)
      return how.strong ? "a bulk reduce-add writes it" : "a bulk store writes it";
    return how.write ? "a bulk load writes it" : "a bulk load reads it";
  }
  const std::string what = how.write ? "store" : "load";
  if (t.block < 0) return how.write ? "the host writes it between launches" : "the host reads it between launches";
  if (how.strong) return std::string("an atomic ") + what + " at " + scopes[int(how.wide)] + " scope";
  return "a plain " + what + (a.shared() ? "" : t.rank == a.rank ? "" : " across the link");
}

finding::access access_of(const past_access& p, const allocation& a) {
  const thread& t = *m.threads[std::size_t(p.thread)];
  return {t.rank, t.block, t.index, t.block < 0, doing(p.how, p, a), addresses_of(p.where)};
}

bool knows(const stamp& s, const past_access& p) {
  return s.base->seen[std::size_t(p.how.component)] >= p.how.count ||
         (s.thread == p.how.component && s.now >= p.how.count);
}

// The asynchronous work itself was not waited for, or only after the release that this thread has acquired.
reason not_awaited(const past_access& p, const thread& u, const thread& t) {
  if (p.how.component == u.mma_component) {
    if (u.base->seen[std::size_t(p.how.component)] >= p.how.count && t.base->seen[std::size_t(u.id)] == 0) return {};
    return {"wgmma_in_flight",
            "the warp has not waited for its wgmma group (wgmma.wait_group) before it lets others write the operand"};
  }
  const bool source = p.how.component == u.reads_component;
  if (!source && p.how.component != u.writes_component) return {};
  const auto found = u.group_moments.find(p.how.count);
  const thread::moments at = found == u.group_moments.end() ? thread::moments() : found->second;
  // What t knows of u is as of this moment; before `issued` there was no release at all between the two.
  const std::uint32_t known = &t == &u ? t.now : t.base->seen[std::size_t(u.id)];
  const bool released = known >= at.issued, read = at.read != 0 && known >= at.read,
             landed = at.landed != 0 && known >= at.landed;
  if (source) {
    if (read || (!released && at.read != 0)) return {};
    return {"source_in_use",
            "its thread has not waited for that bulk group (cp.async.bulk.wait_group.read) before it lets others "
            "write: the store may still read its source"};
  }
  if (landed || (!released && at.landed != 0)) return {};
  if (read || (!released && at.read != 0))
    return {"read_wait",
            "its thread has waited only with cp.async.bulk.wait_group.read, which frees the source and does not say "
            "that the data "
            "has landed: wait for the whole group before the signal",
            at.read_at};
  return {"no_wait", "its thread has not waited for that bulk group (cp.async.bulk.wait_group) before the signal"};
}

reason near_miss_of(const past_access& p, const thread& t) {
  const auto look = [&](const thread& who) -> reason {
    for (const near_miss& miss : who.misses) {
      if (!knows(miss.of, p)) continue;
      if (miss.why == near_miss::relaxed_load)
        return {"relaxed_wait",
                "the load that saw the signal is relaxed: it orders nothing. It must be ld.acquire, or be followed by "
                "a fence",
                miss.load};
      if (miss.why == near_miss::relaxed_store)
        return {"unreleased_signal",
                "the signal that was seen is relaxed: it releases nothing. It must be .release, or follow a fence",
                miss.store};
      return {"scope",
              "the signal that was seen and the load that saw it are not of a scope that includes both threads: peers "
              "need .sys",
              miss.store};
    }
    return {};
  };
  if (reason r = look(t); !r.kind.empty()) return r;
  for (const bool near : {true, false})  // first in its block: whoever waited for the others
    for (const thread* other : m.threads)
      if (other != nullptr && near == (other->rank == t.rank && other->block == t.block))
        if (reason r = look(*other); !r.kind.empty()) return r;
  return {};
}

reason reason_of(const allocation& a, const past_access& p, const past_access& now, const thread& t) {
  const thread& u = *m.threads[std::size_t(p.thread)];
  if (p.how.strong && now.how.strong) {
    if (p.how.async && now.how.async)
      return {"reduce_scope",
              "additions by cp.reduce.async.bulk are atomic at gpu scope only: two GPUs must not add to one address "
              "unordered"};
    return {"scope",
            "both are atomic, but the scope of at least one does not include the other's thread: what peers touch "
            "needs .sys"};
  }
  if (p.how.strong != now.how.strong && !p.how.async && !now.how.async)
    return {"mixed_access",
            "one is atomic and the other is a plain access to the same word: slots need atomics on both sides"};
  const bool seen = t.base->seen[std::size_t(p.how.component)] >= p.how.count || p.thread == t.id;
  if (!seen)
    if (reason r = near_miss_of(p, t); !r.kind.empty()) return r;
  if (p.how.async)
    if (reason r = not_awaited(p, u, t); !r.kind.empty()) return r;
  if (now.how.async && seen && (!p.how.async || t.base->seen[std::size_t(p.how.component)] >= p.how.count)) {
    if (a.shared())
      return {"proxy_fence", std::string("the thread that ") + (p.how.write ? "wrote" : "read") +
                                 " it executed no fence.proxy.async between that and the barrier or arrival that "
                                 "orders the asynchronous access after it"};
    return {
        "proxy_fence",
        "no fence.proxy.async of all state spaces was executed in this block between the acquire and the bulk copy"};
  }
  if (p.how.async && !p.how.write) return {"unordered", "nothing tells this thread that the asynchronous read is over"};
  if (p.how.async && p.how.component != u.writes_component)
    return {"unordered", "this thread has not waited for the mbarrier on which the load completes"};
  return {"unordered", "no chain of release and acquire leads from the first access to the second"};
}

void text(std::ostream& out, const std::string& s) {
  out << '"';
  for (char c : s)
    if (c == '"' || c == '\\')
      out << '\\' << c;
    else if (static_cast<unsigned char>(c) < 32)
      out << ' ';
    else
      out << c;
  out << '"';
}

void numbers(std::ostream& out, const std::vector<std::uint64_t>& all) {
  out << '[';
  for (std::size_t i = 0; i < all.size(); ++i) out << (i ? "," : "") << all[i];
  out << ']';
}

void write(std::ostream& out, const finding::access& a) {
  out << "{\"rank\":" << a.rank << ",\"block\":" << a.block << ",\"thread\":" << a.thread
      << ",\"host\":" << (a.host ? "true" : "false") << ",\"does\":";
  text(out, a.does);
  out << ",\"addresses\":";
  numbers(out, a.addresses);
  out << '}';
}

void add(finding f) {
  if (findings.size() < findings_at_most) findings.push_back(std::move(f));
}

int launch_of(const thread& t) { return m.ranks[std::size_t(t.rank)].launch; }

}  // namespace

void report_race(const allocation& a, const unsigned char* at, const past_access& before, const past_access& now,
                 thread& t) {
  const reason r = reason_of(a, before, now, t);
  const auto from = addresses_of(before.where), to = addresses_of(now.where);
  if (!reported.emplace(r.kind, from.empty() ? 0 : from[0], to.empty() ? 0 : to[0]).second) return;
  finding f;
  f.kind = r.kind, f.missing = r.missing, f.object = describe(at), f.launch = launch_of(t);
  f.first = access_of(before, a), f.second = access_of(now, a);
  if (r.culprit != 0) f.culprit = addresses_of(r.culprit);
  add(std::move(f));
}

void report_outside(const unsigned char* at, std::size_t bytes, const manner& how, site where, thread& t) {
  finding f;
  f.kind = "out_of_bounds", f.object = describe(at), f.launch = launch_of(t);
  f.missing = std::to_string(bytes) + " bytes are touched that are not inside one object of the kernel's";
  past_access p;
  p.how = how, p.thread = t.id, p.where = where;
  f.first = f.second = access_of(p, allocation());
  add(std::move(f));
}

void report_exit(thread& t, const bulk_copy& c) {
  finding f;
  f.kind = "exit_in_flight", f.object = describe(c.shared), f.launch = launch_of(t);
  f.missing =
      "the thread ends without waiting until its bulk store has read shared memory (cp.async.bulk.wait_group.read), "
      "which its block gives back";
  past_access p;
  p.how.async = true, p.how.component = t.reads_component, p.thread = t.id, p.where = c.where;
  f.first = f.second = access_of(p, *find_allocation(c.shared));
  add(std::move(f));
}

void report_end(const char* path) {
  std::ofstream out(path);
  out << "{\"outcome\":";
  text(out, m.end.outcome.empty() ? findings.empty() ? "finished" : "race" : m.end.outcome);
  out << ",\"summary\":";
  text(out, m.end.summary);
  out << ",\"waiting\":[";
  bool first = true;
  int listed = 0;
  if (!m.end.outcome.empty())
    for (const thread* t : m.threads) {
      if (t == nullptr || t->state != thread::blocked || t->waits_for.starts_with("the other") || ++listed > 64)
        continue;
      out << (first ? "" : ",") << "{\"rank\":" << t->rank << ",\"block\":" << t->block << ",\"thread\":" << t->index
          << ",\"for\":";
      text(out, t->waits_for);
      out << '}';
      first = false;
    }
  out << "],\"findings\":[";
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const finding& f = findings[i];
    out << (i ? "," : "") << "{\"kind\":";
    text(out, f.kind);
    out << ",\"object\":";
    text(out, f.object);
    out << ",\"missing\":";
    text(out, f.missing);
    out << ",\"launch\":" << f.launch << ",\"culprit\":";
    numbers(out, f.culprit);
    out << ",\"first\":";
    write(out, f.first);
    out << ",\"second\":";
    write(out, f.second);
    out << '}';
  }
  out << "]}\n";
}

}  // namespace pk::emulated
