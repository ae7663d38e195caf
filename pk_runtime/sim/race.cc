// What is said of a race: both accesses, and what would have ordered them.
#include "race.h"

#include <algorithm>
#include <set>

#include "report.h"
#include "world.h"

namespace pk::sim {

namespace {

struct found {
  epoch before, now;
  access first, second;
  bool proxies = false;  // ordered, but not for an asynchronous operation
  bool swapped = false;  // the second was meant to come first
  std::size_t byte = 0;
};
std::unique_ptr<found> race;
std::set<std::string> notes;
constexpr std::size_t most_notes = 8;

const allocation& allocation_at(const access& a) {
  tensor_ref t;
  t.owner = a.owner, t.id = a.tensor;
  return allocation_of(t);
}

const char* verb(const access& a) {
  if (a.by == means::wgmma) return "multiplies";
  if (a.by == means::ring_load || a.by == means::slab_load) return "loads";
  if (a.by == means::tile_store || a.by == means::slab_store) return "stores";
  if (a.by == means::tile_add) return "adds";
  return a.does == action::read ? "reads" : "writes";
}

std::string worker_name(const worker_clock& k) {
  if (k.host) return printf_string("the host of rank %d", k.rank);
  return printf_string("rank %d block %d %s", k.rank, k.block, name_of(k.role));
}

std::string who(const access& a) {
  const worker_clock& k = order::worker(a.worker);
  if (k.host) return worker_name(k) + printf_string(a.does == action::read ? " (after launch %d)" : " (before launch %d)", a.launch);
  return worker_name(k) + printf_string(" (launch %d)", a.launch) + mark_of(a.at);
}

std::string shared_tile(const access& a) {
  std::string text = printf_string("a %d x %d tile of its block's shared memory", a.rows, a.cols);
  if (a.ring >= 0) text += printf_string(", slot %d of ring #%d", a.slot, a.ring);
  return text;
}

// "loads tile {0, 3, 1} of 'x' of rank 2". `whose` false leaves out what the other access has named: "..., which A loads".
std::string does(const access& a, bool whose) {
  if (a.tensor < 0) {
    const bool from = a.by == means::tile_store || a.by == means::tile_add;
    const bool into = a.by == means::ring_load;
    const std::string how = std::string(verb(a)) + (from ? " from" : into ? " into" : "");
    return whose ? how + " " + shared_tile(a) : how;
  }
  std::string text = std::string(verb(a)) + (a.does == action::add ? " to" : "");
  if (a.by != means::host)
    text += printf_string("%s tile {%d, %d, %d} (%d x %d)", whose ? "" : " as", a.plane, a.row, a.col, a.rows, a.cols);
  if (whose)
    text += printf_string("%s'%s' of rank %d", a.by == means::host ? " " : " of ", allocation_at(a).name.c_str(), a.owner);
  return text;
}

bool same_place(const access& a, const access& b) {
  return a.tensor >= 0 && b.by != means::host && a.plane == b.plane && a.row == b.row && a.col == b.col &&
         a.rows == b.rows && a.cols == b.cols;
}

bool same_block(const worker_clock& a, const worker_clock& b) { return a.rank == b.rank && a.block == b.block; }

const char* kind_of(const found& r) {
  if (r.proxies) return "proxy";
  if (r.first.does != action::read && r.second.does != action::read) return "write_write";
  return (r.first.does == action::read) == r.swapped ? "read_before_write" : "write_after_read";
}

bool covers(const release_note& n, const worker_clock& k, const epoch& e) {
  if (!e.beside) return (e.agent == k.shared ? n.shared : n.seen) >= e.time;
  if (e.agent == k.reads) return n.reads >= e.time;
  if (e.agent == k.landings) return n.landings >= e.time;
  return e.agent == k.wgmmas && n.wgmmas >= e.time;
}

std::string released(const release_note& n) {
  if (n.kind == release_note::barrier) return printf_string("enters barrier '%s'", n.counter->name.c_str());
  if (n.kind == release_note::signal)
    return printf_string("signals '%s' slot %d of rank %d", n.counter->name.c_str(), n.slot, n.rank);
  return printf_string("%s slot %d of ring #%d", n.kind == release_note::commit ? "commits" : "releases", n.slot, n.rank);
}

// What the later worker has waited for on the object of that signal, before its access.
std::string waited(const release_note& n, const worker_clock& later, const access& at) {
  const std::string name = name_of(later.role);
  if (n.kind == release_note::barrier) return ", and the " + name + " does not pass that barrier before";
  if (n.rank != later.rank)
    return printf_string(", but a wait looks at the counters of its own rank, which is rank %d", later.rank);
  std::string slots;
  for (const wait_note& wait : later.waits) {
    if (wait.launch != at.launch || wait.when > at.when || wait.counter->name != n.counter->name) continue;
    if (wait.slot == n.slot)
      return printf_string(", and the %s has waited there for a count of %llu%s, which other signals can make up",
                           name.c_str(), static_cast<unsigned long long>(wait.count), mark_of(wait.at).c_str());
    if (slots.size() < 60) slots += (slots.empty() ? "" : ", ") + std::to_string(wait.slot);
  }
  if (!slots.empty()) return printf_string(", and the %s has waited only for slot %s", name.c_str(), slots.c_str());
  return printf_string(", and the %s has not waited for '%s' before", name.c_str(), n.counter->name.c_str());
}

// A signal or barrier by another role of the block of the one that should have made it.
const release_note* release_by_another_role(const worker_clock& k, const access& a, int to, const worker_clock** by) {
  for (const worker_clock* other : order::workers()) {
    if (other == &k || other->host || !same_block(*other, k)) continue;
    for (const release_note& n : other->releases)
      if (n.counter != nullptr && n.launch == a.launch && n.rank == to) return *by = other, &n;
  }
  return nullptr;
}

std::string missing_in_own_work(const worker_clock& k, const epoch& e, const access& later) {
  const std::string own = printf_string("the %s itself", name_of(k.role));
  if (e.agent == k.wgmmas) return "no mma_wait lies between, so the tensor cores may still read it";
  if (e.agent == k.reads) return "the store may still read its tile: release() or drain_reads() lets it be overwritten";
  if (e.agent == k.landings)
    return "a store lands only at a signal() or barrier() of its own role" +
           std::string(later.does == action::read ? ", and a wait() makes it readable" : "");
  return own + " goes on before that is over";
}

// The first thing that published the access in its launch: best a signal to where it was needed, at worst a ring.
const release_note* first_release(const worker_clock& k, const epoch& e, const access& a, const worker_clock& later) {
  const release_note* best = nullptr;
  int best_rank = 0;
  for (const release_note& n : k.releases) {
    if (n.launch != a.launch || !covers(n, k, e)) continue;
    const bool elsewhere = n.counter == nullptr && a.ring >= 0 && n.rank != a.ring;
    const int rank = elsewhere ? 0 : n.counter == nullptr ? 1 : n.rank != later.rank ? 2 : 3;
    if (rank > best_rank) best = &n, best_rank = rank;
  }
  return best;
}

// What would have to order `a` (made at `e`) before `b`, and what there is instead.
std::string missing(const epoch& e, const access& a, const access& b) {
  const worker_clock &k = order::worker(a.worker), &later = order::worker(b.worker);
  if (later.host)
    return printf_string("rank %d ends the launch without waiting for rank %d: bind the tensor as a parallel_layout on "
                         "every rank", later.rank, k.rank);
  if (k.host) return "the launch of this rank does not wait for the others to enter";
  if (&k == &later) return missing_in_own_work(k, e, b);
  const std::string name = worker_name(k);
  if (e.beside && e.agent == k.wgmmas)
    for (const release_note& n : k.releases)
      if (n.when > a.when && n.kind == release_note::free_slot && n.rank == a.ring && !covers(n, k, e))
        return name + " " + released(n) + mark_of(n.at) + " before an mma_wait has made sure that the tile was read";
  if (const release_note* n = first_release(k, e, a, later)) {
    const std::string text = name + " " + released(*n) + " after that" + mark_of(n->at);
    return text + (n->counter != nullptr ? waited(*n, later, b)
                                         : printf_string(", and the %s does not wait for that", name_of(later.role)));
  }
  const worker_clock* by = nullptr;
  if (const release_note* n = release_by_another_role(k, a, later.rank, &by))
    return printf_string("the %s of that block %s%s, but that publishes only what its own role has stored",
                         name_of(by->role), released(*n).c_str(), mark_of(n->at).c_str());
  for (auto n = k.releases.rbegin(); n != k.releases.rend(); ++n)
    if (n->counter != nullptr && n->launch == a.launch && n->rank == later.rank && n->when < a.when)
      return name + " " + released(*n) + mark_of(n->at) + " before that and publishes nothing after it";
  return name + " publishes nothing after that: no signal, barrier or ring commit follows";
}

std::string missing_fence(const found& r) {
  return printf_string("the two are ordered, but the first is a plain access and the second an asynchronous copy, which sees "
                       "memory through another proxy: only wait() or barrier() by the %s in between fences them",
                       name_of(order::worker(r.second.worker).role));
}

// Of a read and a write in no order, either may happen to come first. A read that found nothing of its own launch was too
// early; so was a write that came when the reader had waited for what was there before.
bool came_in_wrong_order(const access& first, const access& second, const attempt& now, const epoch& filled) {
  const access* fill = filled.time == 0 ? nullptr : &order::access_of(filled);
  const bool own = fill != nullptr && fill->launch == first.launch && fill->by != means::host;
  if (first.does == action::read) {
    const bool caller = first.tensor >= 0 && !allocation_at(first).scratch;  // memory that is always filled
    return second.does != action::read && !caller && !own;
  }
  return second.does == action::read && own && now.after->covers(filled, now.asynchronous);
}

std::string edge(const found& r) {
  if (r.proxies) return missing_fence(r);
  if (r.swapped) return missing(r.now, r.second, r.first);
  const std::string text = missing(r.before, r.first, r.second);
  const bool twice = r.first.does != action::read && r.second.does != action::read && r.first.worker != r.second.worker;
  return twice && r.first.launch == r.second.launch ? "perhaps one of the two has a wrong place or rank; " + text : text;
}

std::string entry(const access& a) {
  const worker_clock& k = order::worker(a.worker);
  std::vector<std::string> out = {field("rank", k.rank), field("block", k.block),
                                  field("role", k.host ? "host" : name_of(k.role)), field("launch", a.launch),
                                  field("line", mark_of(a.at)), field("action", verb(a))};
  if (a.tensor >= 0) {
    out.insert(out.end(), {field("tensor", allocation_at(a).name), field("owner", a.owner),
                           field("tile", printf_string("{%d, %d, %d}", a.plane, a.row, a.col)),
                           field("tile_shape", printf_string("%d x %d", a.rows, a.cols))});
  } else {
    out.push_back(field("shared_tile", printf_string("%d x %d", a.rows, a.cols)));
    if (a.ring >= 0) out.insert(out.end(), {field("ring", a.ring), field("slot", a.slot)});
  }
  return object(out);
}

}  // namespace

void found_race(const epoch& before, const attempt& now, std::size_t byte, const epoch& filled) {
  if (race != nullptr) return;
  race = std::make_unique<found>();
  race->before = before, race->now = now.when, race->byte = byte;
  race->first = order::access_of(before), race->second = *now.what;
  race->proxies = now.asynchronous && !before.beside && now.after->covers(before, false);
  race->swapped = came_in_wrong_order(race->first, race->second, now, filled);
}

void found_unordered_adds(const epoch& before, const attempt& now) {
  const access first = order::access_of(before);
  const int one = order::worker(first.worker).rank, other = order::worker(now.what->worker).rank;
  if (one == other || notes.size() >= most_notes) return;
  notes.insert(printf_string("several ranks reduce-add to the same memory of '%s' of rank %d in no order: the sum depends on "
                             "the order of arrival, and rounds at every addition",
                             allocation_at(first).name.c_str(), first.owner));
}

bool race_was_found() { return race != nullptr; }

std::string race_summary() {
  const found& r = *race;
  const access &subject = r.swapped ? r.first : r.second, &other = r.swapped ? r.second : r.first;
  const std::string rest = same_place(subject, other) ? verb(other) : does(other, false);
  return who(subject) + " " + does(subject, true) + ", which " + who(other) + " " + rest +
         (subject.does == action::read ? "; nothing orders the read after the write: "
          : other.does == action::read ? "; nothing orders the write after the read: "
                                       : "; nothing orders the two writes: ") + edge(r);
}

std::vector<std::string> race_fields() {
  const found& r = *race;
  std::vector<std::string> out = {field("kind", kind_of(r)), quoted("first") + ": " + entry(r.first),
                                  quoted("second") + ": " + entry(r.second), field("missing", edge(r))};
  if (r.first.tensor >= 0)
    out.push_back(field("bytes", printf_string("from byte %zu of the tensor", r.byte)));
  return out;
}

std::vector<std::string> race_notes() { return {notes.begin(), notes.end()}; }

}  // namespace pk::sim
