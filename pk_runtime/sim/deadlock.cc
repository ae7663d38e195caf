// Nothing can run any more: who waits for what, who could still provide it, and what kind of mistake that is. The class
// follows from what the run has left behind (counts by source, ring ends, who has finished), and the cause says which.
#include <algorithm>
#include <set>

#include "report.h"
#include "world.h"

namespace pk::sim {

namespace {

constexpr std::size_t most_waits = 64, most_named = 4;

using fibers = std::vector<const fiber*>;

struct verdict {
  const char* kind = nullptr;  // the class
  std::string cause;
};

bool waits_for_signals(const fiber& f) { return f.reason == waiting_for::signal || f.reason == waiting_for::barrier; }
bool waits_for_ring(const fiber& f) { return f.reason == waiting_for::data || f.reason == waiting_for::free_slot; }

fibers unfinished() {
  fibers found;
  for (const rank_state& r : w.ranks)
    for (const auto& f : r.fibers)
      if (!f->done) found.push_back(f.get());
  return found;
}

int signals_from(const counters& c, int slot, int launch, int source) {
  return c.from[std::size_t(launch)][std::size_t(slot) * std::size_t(w.ask.world) + std::size_t(source)];
}

int signals_to(const counters& c, int slot, int launch) {
  int total = 0;
  for (int r = 0; r < w.ask.world; ++r) total += signals_from(c, slot, launch, r);
  return total;
}

// All that one rank has sent of this object in a launch, to whomever.
int sent_by(const counters& c, int launch, int source) {
  int total = 0;
  for (const rank_state& r : w.ranks) {
    const counters& theirs = r.signals[std::size_t(c.id)];
    for (int slot = 0; slot < theirs.slots; ++slot) total += signals_from(theirs, slot, launch, source);
  }
  return total;
}

std::uint64_t seen_by(const fiber& f) {
  const counters& c = *f.counter;
  const auto value = c.value[std::size_t(c.index(f.slot, f.home->launch))], base = c.base(f.home->launch);
  return value - std::min(value, base);
}

// Whose signals a wait lacks. Where more ranks are quiet than signals are missed, the own one is perhaps not meant.
std::vector<int> quiet_ranks(const fiber& f) {
  int most = 1;  // who has signalled less often than others is quiet, and who never has
  for (int r = 0; r < w.ask.world; ++r) most = std::max(most, signals_from(*f.counter, f.slot, f.home->launch, r));
  std::vector<int> quiet;
  for (int r = 0; r < w.ask.world; ++r)
    if (signals_from(*f.counter, f.slot, f.home->launch, r) < most) quiet.push_back(r);
  if (quiet.size() > f.wanted - seen_by(f)) std::erase(quiet, f.home->rank);
  return quiet;
}

bool left_launch(int rank, int launch) { return w.ranks[std::size_t(rank)].left > launch; }

std::string list(const std::vector<int>& numbers) {
  std::string text;
  for (int n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

// Who could still do what `f` waits for.
fibers providers(const fiber& f, const fibers& all) {
  fibers found;
  auto add_if = [&](auto&& could) {
    for (const fiber* g : all)
      if (g != &f && could(*g)) found.push_back(g);
  };
  if (waits_for_ring(f)) {
    const fiber* other = f.reason == waiting_for::data ? f.ring->producer : f.ring->consumer;
    add_if([&](const fiber& g) { return g.home == f.home && (other == nullptr || other == &g); });
  } else if (f.reason == waiting_for::signal) {
    unsigned roles = 0;
    for (const rank_state& r : w.ranks) roles |= r.signals[std::size_t(f.counter->id)].roles;
    const std::vector<int> quiet = quiet_ranks(f);
    add_if([&](const fiber& g) {
      return std::count(quiet.begin(), quiet.end(), g.home->rank) > 0 && g.home->launch <= f.home->launch &&
             (roles == 0 || (roles >> int(g.role) & 1) != 0);
    });
  } else if (f.reason == waiting_for::barrier) {
    add_if([&](const fiber& g) {
      return g.role == f.role && !(g.reason == waiting_for::barrier && g.counter->id == f.counter->id &&
                                   g.wanted >= f.wanted);
    });
  } else if (f.reason == waiting_for::mailbox) {
    add_if([&](const fiber& g) { return g.home->rank == f.source && g.home->launch <= f.home->launch; });
  } else if (f.reason == waiting_for::peers_to_enter) {
    add_if([&](const fiber& g) { return g.home->launch < f.home->launch; });
  }
  return found;
}

std::string wanted_text(const fiber& f) {
  if (waits_for_signals(f))
    return printf_string("%s '%s' slot %d", f.reason == waiting_for::signal ? "signal" : "barrier", f.counter->name.c_str(),
                         f.slot);
  if (f.reason == waiting_for::mailbox)
    return printf_string("mailbox '%s' slot %d from rank %d", f.mailbox->name.c_str(), f.slot, f.source);
  if (f.reason == waiting_for::peers_to_enter) return "every rank to enter the launch";
  return printf_string("%s of ring #%d", f.reason == waiting_for::data ? "data" : "a free slot", f.ring->id);
}

// --- The classes, each with what it takes to be sure of it.

verdict not_resident(const fibers&) {
  for (std::size_t rank = 0; rank < w.ranks.size(); ++rank) {
    const rank_state& r = w.ranks[rank];
    if (r.to_place.empty()) continue;
    return {"grid_not_coresident",
            printf_string("%zu of the %d blocks of rank %zu have not begun, as only %d run at a time and those wait: a grid "
                          "whose blocks wait for each other must be resident as a whole", r.to_place.size(),
                          w.ask.sms_of(int(rank)), rank, w.ask.resident)};
  }
  return {};
}

verdict grids_differ(const fibers&) {
  for (int r = 1; r < w.ask.world; ++r)
    if (w.ask.sms_of(r) != w.ask.sms_of(0))
      return {"rank_divergent", printf_string("the grids differ: rank 0 has %d blocks and rank %d has %d, and the kernel counts "
                                              "on as many signals from each", w.ask.sms_of(0), r, w.ask.sms_of(r))};
  return {};
}

verdict earlier_launch(const fibers& all) {
  for (const fiber* f : all) {
    if (f->reason != waiting_for::signal) continue;
    for (int launch = f->home->launch % 2; launch < f->home->launch; launch += 2) {
      const int total = signals_to(*f->counter, f->slot, launch);
      if (total != f->counter->per_launch)
        return {"launch_order", printf_string("the wait for %s starts from a wrong count: in launch %d this counter got %d "
                                              "signals and setup() declares %d per launch", wanted_text(*f).c_str(), launch,
                                              total, f->counter->per_launch)};
    }
  }
  return {};
}

verdict wrong_count(const fibers& all) {
  for (const fiber* f : all) {
    if (f->reason != waiting_for::signal) continue;
    const counters& c = *f->counter;
    if (f->wanted > std::uint64_t(c.per_launch))
      return {"count_mismatch", printf_string("%s waits for %llu signals and setup() declares %d per launch", describe(*f).c_str(),
                                              static_cast<unsigned long long>(f->wanted), c.per_launch)};
    if (quiet_ranks(*f).empty() && providers(*f, all).empty())
      return {"count_mismatch", printf_string("every rank has signalled %s, and all of them together %llu times: fewer than "
                                              "the %llu expected", wanted_text(*f).c_str(),
                                              static_cast<unsigned long long>(seen_by(*f)),
                                              static_cast<unsigned long long>(f->wanted))};
  }
  return {};
}

// A signal that is missed here and is one too many elsewhere, or is where nobody is left to wait for it.
verdict wrong_address(const fibers& all) {
  for (const fiber* f : all) {
    if (f->reason != waiting_for::signal) continue;
    const int launch = f->home->launch;
    for (int source : quiet_ranks(*f))
      for (int rank = 0; rank < w.ask.world; ++rank) {
        const counters& c = w.ranks[std::size_t(rank)].signals[std::size_t(f->counter->id)];
        for (int slot = 0; slot < c.slots; ++slot) {
          const int n = signals_from(c, slot, launch, source), total = signals_to(c, slot, launch);
          const bool unused = arithmetic() && left_launch(rank, launch) && c.waited.count({launch, slot}) == 0;
          if (n == 0 || (total <= c.per_launch && !unused)) continue;
          const auto at = c.sent_at.find({launch, source, slot});
          return {"wrong_peer",
                  printf_string("rank %d has not signalled '%s' slot %d of rank %d, but slot %d of rank %d, %s%s", source,
                                c.name.c_str(), f->slot, f->home->rank, slot, rank,
                                unused ? "for which nobody waited" :
                                         printf_string("which got %d signals and should get %d", total, c.per_launch).c_str(),
                                at == c.sent_at.end() ? "" : mark_of(at->second).c_str())};
        }
      }
  }
  for (const fiber* f : all) {
    if (f->reason != waiting_for::mailbox) continue;
    const auto& own = w.ranks[std::size_t(f->home->rank)].boxes;
    const auto index = std::find_if(own.begin(), own.end(), [&](const box& b) { return &b == f->mailbox; }) - own.begin();
    for (std::size_t rank = 0; rank < w.ranks.size(); ++rank) {
      const box& b = w.ranks[rank].boxes[std::size_t(index)];
      for (int slot = 0; slot < b.slots; ++slot) {
        const letter& l = b.letters[f->home->launch % 2][std::size_t(f->source) * std::size_t(b.slots) + std::size_t(slot)];
        if (l.arrived == f->home->launch && l.taken != f->home->launch)
          return {"wrong_peer", printf_string("rank %d has posted to slot %d of rank %zu, which nobody has taken, and not to "
                                              "slot %d of rank %d", f->source, slot, rank, f->slot, f->home->rank)};
      }
    }
  }
  return {};
}

verdict ring_ends(const fibers& all) {
  for (const fiber* f : all) {
    if (!waits_for_ring(*f) || !providers(*f, all).empty()) continue;
    const bool data = f->reason == waiting_for::data;
    const ring_core& r = *f->ring;
    return {"pipeline_phase", printf_string("the ends of ring #%d of rank %d block %d do not handle the same number of slots: %u "
                                            "filled, %u emptied, and the role that %s it has finished", r.id, f->home->rank,
                                            f->home->index, r.committed, r.released, data ? "fills" : "empties")};
  }
  return {};
}

// Workers of which each waits for the next and the last for the first.
bool find_cycle(const fiber& f, const fibers& all, std::set<const fiber*>& known, fibers& path) {
  if (const auto at = std::find(path.begin(), path.end(), &f); at != path.end()) return path.erase(path.begin(), at), true;
  if (!known.insert(&f).second) return false;
  path.push_back(&f);
  for (const fiber* next : providers(f, all))
    if (find_cycle(*next, all, known, path)) return true;
  path.pop_back();
  return false;
}

fibers cycle_of(const fibers& all) {
  std::set<const fiber*> known;
  fibers path;
  for (const fiber* f : all)
    if (find_cycle(*f, all, known, path)) break;
  return path;
}

verdict cycle(const fibers& all) {
  const fibers found = cycle_of(all);
  if (found.size() < 2) return {};
  std::string text;
  for (const fiber* f : found) text += describe(*f) + " waits for " + wanted_text(*f) + " -> ";
  return {"role_order_cycle", "a cycle: " + text + describe(*found.front())};
}

verdict missing(const fibers& all) {
  for (const fiber* f : all) {
    if (!waits_for_signals(*f) || !providers(*f, all).empty()) continue;
    const int launch = f->home->launch;
    int most = 0, by = 0;
    for (int r = 0; r < w.ask.world; ++r)
      if (const int n = sent_by(*f->counter, launch, r); n > most) most = n, by = r;
    for (int source : quiet_ranks(*f)) {
      const int n = sent_by(*f->counter, launch, source);
      if (left_launch(source, launch) && n < most && source != f->home->rank)
        return {"rank_divergent", printf_string("all workers of rank %d have finished launch %d, having signalled '%s' %d times "
                                                "in all; rank %d did so %d times: the ranks took different paths", source,
                                                launch, f->counter->name.c_str(), n, by, most)};
    }
    if (f->reason == waiting_for::barrier)
      return {"rank_divergent", printf_string("barrier '%s' has %llu of %llu arrivals, and no worker is left that could arrive: "
                                              "not all call it equally often", f->counter->name.c_str(),
                                              static_cast<unsigned long long>(seen_by(*f)),
                                              static_cast<unsigned long long>(f->wanted))};
    return {"missing_signal", printf_string("nobody is left who could signal %s of rank %d; no signal from rank %s",
                                            wanted_text(*f).c_str(), f->home->rank, list(quiet_ranks(*f)).c_str())};
  }
  for (const fiber* f : all)
    if (f->reason == waiting_for::mailbox && providers(*f, all).empty())
      return {"missing_signal", printf_string("nobody is left who could post to %s", wanted_text(*f).c_str())};
  return {};
}

verdict judge(const fibers& all) {
  for (auto* of : {not_resident, grids_differ, earlier_launch, wrong_count, wrong_address, ring_ends, missing, cycle})
    if (verdict v = of(all); v.kind != nullptr) return v;
  return {"launch_order", "ranks wait for each other to enter or leave a launch"};
}

// --- The entries of the report.

// A wait starts counting at what earlier launches with the same set of counters should have brought.
std::string epoch_drift(const counters& c, const fiber& f) {
  for (int launch = f.home->launch % 2; launch < f.home->launch && !c.barrier; launch += 2) {
    const int total = signals_to(c, f.slot, launch);
    if (total != c.per_launch)
      return printf_string("; in launch %d this counter got %d signals and setup() declares %d per launch", launch, total,
                           c.per_launch);
  }
  return "";
}

// What the same source has posted here in this launch and nobody takes: a wrong slot shows.
std::string left_in_box(const fiber& f) {
  const box& b = *f.mailbox;
  const int launch = f.home->launch;
  std::string slots;
  int n = 0;
  for (int slot = 0; slot < b.slots; ++slot) {
    const letter& l = b.letters[launch % 2][std::size_t(f.source) * b.slots + slot];
    if (l.arrived == launch && l.taken != launch && ++n <= 4) slots += (slots.empty() ? "" : ", ") + std::to_string(slot);
  }
  if (n == 0) return printf_string("; rank %d has posted nothing else to it that is not taken", f.source);
  return printf_string("; rank %d has posted to slot %s%s, which nobody has taken", f.source, slots.c_str(), n > 4 ? ", ..." : "");
}

// One waiting fiber: what it wants, what there is, and who has and has not signalled.
std::string wait_entry(const fiber& f, const fibers& all, std::string& sentence) {
  std::vector<std::string> out = place(f);
  const std::string who = describe(f);
  if (f.reason == waiting_for::signal || f.reason == waiting_for::barrier) {
    const counters& c = *f.counter;
    const std::uint64_t seen = seen_by(f);
    std::vector<std::string> counts, last;
    std::vector<int> quiet;
    for (int r = 0; r < w.ask.world; ++r) {
      const int n = signals_from(c, f.slot, f.home->launch, r);
      counts.push_back(printf_string("%d", n));
      if (n == 0) quiet.push_back(r);
      if (const auto at = c.sent_at.find({f.home->launch, r, f.slot}); at != c.sent_at.end())
        last.push_back(quoted(printf_string("rank %d", r) + mark_of(at->second)));
    }
    // Where more are quiet than are missed, the own rank is perhaps not meant to signal.
    const bool aside = quiet.size() > f.wanted - seen && std::erase(quiet, f.home->rank) > 0;
    std::string silent = list(quiet);
    if (aside) silent += ", nor from itself";
    sentence = printf_string("%s waits for %s '%s' slot %d: expected %llu, seen %llu", who.c_str(),
                             f.reason == waiting_for::signal ? "signal" : "barrier", c.name.c_str(), f.slot,
                             static_cast<unsigned long long>(f.wanted), static_cast<unsigned long long>(seen));
    if (const std::string drift = epoch_drift(c, f); !drift.empty()) sentence += drift;
    else if (!silent.empty()) sentence += "; no signal from rank " + silent;
    else if (f.reason == waiting_for::signal) sentence += "; every rank has signalled, so the expected count is too high";
    out.insert(out.end(), {field("waits_for", f.reason == waiting_for::signal ? "signal" : "barrier"),
                           field("signal", c.name), field("slot", f.slot), field("expected", double(f.wanted)),
                           field("seen", double(seen)), quoted("signals_by_rank") + ": " + array(counts),
                           quoted("last_signals") + ": " + array(last)});
  } else if (f.reason == waiting_for::mailbox) {
    sentence = printf_string("%s waits for mailbox '%s' slot %d from rank %d", who.c_str(), f.mailbox->name.c_str(), f.slot,
                             f.source) + left_in_box(f);
    out.insert(out.end(), {field("waits_for", "mailbox"), field("mailbox", f.mailbox->name), field("slot", f.slot),
                           field("source", f.source)});
  } else if (f.reason == waiting_for::peers_to_enter) {
    sentence = who + " waits for every rank to enter the launch";
    out.push_back(field("waits_for", "peers_to_enter"));
  } else {
    const bool data = f.reason == waiting_for::data;
    const ring_core& r = *f.ring;
    const unsigned expected = data ? r.waited + 1 : r.acquired + 1 - unsigned(r.depth);
    const unsigned seen = data ? r.committed : r.released;
    sentence = printf_string("%s waits for %s of ring #%d: needs %u slots %s, seen %u", who.c_str(),
                             data ? "data" : "a free slot", r.id, expected, data ? "filled" : "released", seen);
    if (providers(f, all).empty())
      sentence += data ? "; the role that fills it has finished or never acquires again"
                       : "; the role that empties it has finished or never waits again";
    out.insert(out.end(), {field("waits_for", data ? "ring_data" : "ring_slot"), field("ring", r.id),
                           field("expected", expected), field("seen", seen)});
  }
  sentence += mark_of(f.at);
  std::vector<std::string> who_could;
  for (const fiber* g : providers(f, all))
    if (who_could.size() < most_named) who_could.push_back(quoted(describe(*g)));
  out.push_back(quoted("could_provide") + ": " + array(who_could));
  out.push_back(field("text", sentence));
  return object(out);
}

std::vector<std::string> texts(const fibers& of) {
  std::vector<std::string> out;
  for (const fiber* f : of) out.push_back(quoted(describe(*f) + " waits for " + wanted_text(*f) + mark_of(f->at)));
  return out;
}

}  // namespace

void report_deadlock() {
  fibers waiting = unfinished();
  // Signals and mailboxes first: rings usually wait because somebody behind them waits for a peer.
  std::stable_sort(waiting.begin(), waiting.end(), [](const fiber* a, const fiber* b) {
    auto order = [](const fiber* f) { return f->reason == waiting_for::peers_to_enter ? 2 : waits_for_ring(*f) ? 1 : 0; };
    return order(a) < order(b);
  });
  std::vector<std::string> entries;
  std::string first;
  for (const fiber* f : waiting) {
    if (entries.size() == most_waits) break;
    std::string sentence;
    entries.push_back(wait_entry(*f, waiting, sentence));
    if (first.empty()) first = sentence;
  }
  const verdict found = judge(waiting);
  write_and_exit({field("outcome", "deadlock"), field("class", found.kind), field("cause", found.cause),
                  field("summary", "nothing can run any more: " + first), field("waiting", double(waiting.size())),
                  quoted("cycle") + ": " + array(texts(cycle_of(waiting))), quoted("waits") + ": " + array(entries)});
}

}  // namespace pk::sim
