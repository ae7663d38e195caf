#include "order.h"

#include <algorithm>
#include <array>

#include "world.h"

namespace pk::sim::order {

namespace {

std::vector<std::unique_ptr<worker_clock>> owners;
std::vector<worker_clock*> list;
std::map<std::array<int, 3>, worker_clock*> positions;       // rank, block, role
std::map<std::array<int, 3>, std::uint32_t> ring_loads;      // rank, block, ring
std::vector<std::vector<access>> of_roles, of_companions;    // accesses by agent and time - 1
std::vector<worker_clock*> hosts;                            // by rank
std::vector<std::vector<views>> entries, exits;              // by rank and launch
std::map<std::array<int, 2>, shadow::object> global_memory;  // by owner and tensor_ref::id
shadow memory;
std::uint32_t moments = 0;  // accesses, releases and waits so far

std::uint32_t new_agent(std::vector<std::vector<access>>& agents) {
  agents.emplace_back();
  return std::uint32_t(agents.size() - 1);
}

worker_clock& new_worker(int rank) {
  owners.push_back(std::make_unique<worker_clock>());
  worker_clock& k = *owners.back();
  k.rank = rank, k.number = std::uint32_t(list.size());
  k.global = new_agent(of_roles), k.shared = new_agent(of_roles);
  list.push_back(&k);
  return k;
}

worker_clock& host_of(int rank) {
  hosts.resize(w.ranks.size());
  if (hosts[rank] == nullptr) {
    hosts[rank] = &new_worker(rank);
    hosts[rank]->host = true, hosts[rank]->block = -1;
  }
  return *hosts[rank];
}

// The next epoch of an agent, in which `what` happens. Plain accesses are seen by their own worker at once.
epoch tick(worker_clock& k, std::uint32_t agent, bool beside, const access& what) {
  auto& happened = (beside ? of_companions : of_roles)[agent];
  happened.push_back(what);
  const auto time = std::uint32_t(happened.size());
  if (!beside) k.now.seen.raise(agent, time);
  return {agent, time, beside};
}

std::uint32_t time_of(std::uint32_t companion) { return std::uint32_t(of_companions[companion].size()); }
std::uint32_t time_of_role(std::uint32_t agent) { return std::uint32_t(of_roles[agent].size()); }

access described(const fiber& f, action does, means by) {
  access a;
  a.worker = f.clock->number, a.launch = f.home->launch, a.at = f.at, a.when = ++moments, a.does = does, a.by = by;
  return a;
}

void access_tensor(const epoch& when, const access& what, const views& after, bool asynchronous, const tensor_ref& t) {
  const std::int64_t size = element_bytes(t.type);
  const int width = min(what.cols, t.cols - what.col * what.cols);
  const int height = min(what.rows, t.rows - what.row * what.rows);
  const auto* base = allocation_of(t).copies[t.id % 2].data();
  const std::int64_t first = static_cast<const unsigned char*>(t.data) - base +
                             (what.plane * t.plane_stride + std::int64_t(what.row) * what.rows * t.row_stride +
                              std::int64_t(what.col) * what.cols) * size;
  memory.rows(global_memory[{t.owner, t.id}], {when, &what, &after, asynchronous}, std::size_t(first),
              std::size_t(width * size), std::size_t(t.row_stride * size), height);
}

access of_tensor(access a, const tensor_ref& t, coord at, const tile_ref& tile) {
  a.tensor = std::int16_t(t.id), a.owner = std::int16_t(t.owner);
  a.plane = at.plane, a.row = at.row, a.col = at.col, a.rows = tile.rows, a.cols = tile.cols;
  return a;
}

access of_tile(access a, const fiber& f, const tile_ref& tile) {
  a.owner = std::int16_t(f.home->rank), a.rows = tile.rows, a.cols = tile.cols;
  const auto at = f.home->tiles.find(tile.data);
  if (at != f.home->tiles.end()) a.ring = at->second.ring, a.slot = at->second.slot;
  return a;
}

void access_tile(const fiber& f, const epoch& when, const access& what, const views& after, bool asynchronous,
                 const tile_ref& tile) {
  memory.cell(f.home->tiles[tile.data].state, {when, &what, &after, asynchronous});
}

// fence.proxy.async of all threads: what is ordered before plain accesses is so before asynchronous ones.
void fence(worker_clock& k) { k.now.fenced = k.now.seen; }

// The same by the first thread alone, for which the others' plain accesses count only as far as they last met.
void fence_by_leader(worker_clock& k) {
  const std::uint32_t others = std::max(k.now.fenced[k.global], k.together);
  const bool all = !k.threads || others == k.now.seen[k.global];
  if (all) return fence(k);
  k.now.fenced = k.now.seen.with(k.global, others);
}

ring_clock& clock_of(const fiber& f, const ring_core& r) {
  auto& rings = f.home->ring_clocks;
  if (rings.size() <= std::size_t(r.id)) rings.resize(std::size_t(r.id) + 1);
  ring_clock& c = rings[r.id];
  if (c.full.empty()) {
    c.full.resize(r.depth), c.empty.resize(r.depth);
    const auto [at, fresh] = ring_loads.try_emplace({f.home->rank, f.home->index, r.id}, 0);
    if (fresh) at->second = new_agent(of_companions);
    c.loads = at->second;
  }
  return c;
}

void note_release(fiber& f, release_note::kind_t kind, const counters* c, int rank, int slot) {
  worker_clock& k = *f.clock;
  k.releases.push_back({kind, c, rank, slot, f.home->launch, f.at, ++moments, k.now.seen[k.global], k.now.seen[k.shared],
                        k.now.landed[k.reads], k.now.landed[k.landings], k.now.landed[k.wgmmas]});
}

void host_access(int rank, allocation& a, action does) {
  worker_clock& h = host_of(rank);
  access what;
  what.worker = h.number, what.launch = w.ranks[rank].launch, what.when = ++moments, what.does = does, what.by = means::host;
  what.tensor = std::int16_t(a.id * 2), what.owner = std::int16_t(rank);
  what.rows = a.rows, what.cols = a.cols;
  const epoch when = tick(h, h.global, false, what);
  const std::size_t bytes = a.copies[0].size();
  memory.rows(global_memory[{rank, a.id * 2}], {when, &what, &h.now, false}, 0, bytes, bytes, 1);
}

}  // namespace

const worker_clock& worker(std::uint32_t number) { return *list[number]; }
const std::vector<worker_clock*>& workers() { return list; }
const access& access_of(const epoch& e) { return (e.beside ? of_companions : of_roles)[e.agent][e.time - 1]; }

// --- launches ---------------------------------------------------------------------------------------

void track(fiber& f) {
  if (w.ask.timing) return;
  const block& b = *f.home;
  worker_clock*& k = positions[{b.rank, b.index, int(f.role)}];
  if (k == nullptr) {
    k = &new_worker(b.rank);
    k->block = b.index, k->role = f.role;
    k->threads = f.role == role::consumer || f.role == role::communicator;
    k->reads = new_agent(of_companions), k->landings = new_agent(of_companions), k->wgmmas = new_agent(of_companions);
  }
  f.clock = k;
}

void host_begins(int rank) {
  if (w.ask.timing) return;
  for (auto& [name, a] : w.ranks[rank].tensors)
    if (!a.scratch) host_access(rank, a, action::write);
  entries.resize(w.ranks.size()), exits.resize(w.ranks.size());
  entries[rank].push_back(host_of(rank).now);
  exits[rank].emplace_back();
}

void host_ends(int rank, bool with_peers) {
  if (w.ask.timing) return;
  worker_clock& h = host_of(rank);
  const int launch = w.ranks[rank].launch;
  for (int r = 0; r < w.ask.world; ++r)
    if (r == rank || with_peers) h.now.join(exits[r][launch]);
  for (auto& [name, a] : w.ranks[rank].tensors)
    if (!a.scratch && !a.input) host_access(rank, a, action::read);
}

void enter(fiber& f, bool with_peers) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  const int launch = f.home->launch, heard = with_peers ? launch : launch - 1;
  k.now.join(entries[k.rank][launch]);
  for (int r = 0; r < w.ask.world && heard >= 0; ++r) k.now.join(entries[r][heard]);
  fence(k);
}

void leave(fiber& f) {
  if (f.clock != nullptr) exits[f.home->rank][f.home->launch].join(f.clock->now);
}

// --- rings ------------------------------------------------------------------------------------------

void acquire_slot(fiber& f, const ring_core& r, int slot) {
  if (f.clock != nullptr) f.clock->now.join(clock_of(f, r).empty[slot]);
}

void load(fiber& f, const ring_core& r, int slot, const tile_ref& tile, const tensor_ref& src, coord at) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  const std::uint32_t agent = clock_of(f, r).loads;
  block::tile_state& known = f.home->tiles[tile.data];
  known.ring = std::int16_t(r.id), known.slot = std::int16_t(slot);
  const access from = of_tensor(described(f, action::read, means::ring_load), src, at, tile);
  access_tensor(tick(k, agent, true, from), from, k.now, true, src);
  const access to = of_tile(described(f, action::write, means::ring_load), f, tile);
  access_tile(f, tick(k, agent, true, to), to, k.now, true, tile);
}

void commit_slot(fiber& f, const ring_core& r, int slot) {
  if (f.clock == nullptr) return;
  ring_clock& c = clock_of(f, r);
  note_release(f, release_note::commit, nullptr, r.id, slot);
  c.full[slot] = f.clock->now;
  c.full[slot].landed.raise(c.loads, time_of(c.loads));  // whoever waits for the slot waits for its loads
}

void wait_slot(fiber& f, const ring_core& r, int slot) {
  if (f.clock != nullptr) f.clock->now.join(clock_of(f, r).full[slot]);
}

void release_slot(fiber& f, const ring_core& r, int slot) {
  if (f.clock == nullptr) return;
  note_release(f, release_note::free_slot, nullptr, r.id, slot);
  clock_of(f, r).empty[slot] = f.clock->now;
}

// --- memory -----------------------------------------------------------------------------------------

void store(fiber& f, const tensor_ref& dst, coord at, const tile_ref& src, bool add) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  const means by = add ? means::tile_add : means::tile_store;
  const access from = of_tile(described(f, action::read, by), f, src);
  access_tile(f, tick(k, k.reads, true, from), from, k.now, true, src);
  const access to = of_tensor(described(f, add ? action::add : action::write, by), dst, at, src);
  access_tensor(tick(k, k.landings, true, to), to, k.now, true, dst);
}

void slab(fiber& f, const tensor_ref& t, coord at, const tile_ref& v, bool write) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  const access what = of_tensor(described(f, write ? action::write : action::read,
                                          write ? means::slab_store : means::slab_load), t, at, v);
  access_tensor(tick(k, k.global, false, what), what, k.now, false, t);
}

void drained(fiber& f, bool reads_only) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  k.now.landed.raise(k.reads, time_of(k.reads));
  if (!reads_only) k.now.landed.raise(k.landings, time_of(k.landings));
}

void meet(fiber& f) {
  if (f.clock != nullptr) f.clock->together = time_of_role(f.clock->global);
}

void touch(fiber& f, const tile_ref& tile, bool write) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  const access what = of_tile(described(f, write ? action::write : action::read, means::registers), f, tile);
  access_tile(f, tick(k, k.shared, false, what), what, k.now, false, tile);
  // Each thread ends such an operation with fence.proxy.async.shared::cta; nobody else uses this memory.
  for (const auto& other : w.ranks[k.rank].fibers)
    if (other->home == f.home && other->clock != nullptr)
      k.now.fenced.raise(other->clock->shared, k.now.seen[other->clock->shared]);
  if (write) meet(f);
}

void multiply(fiber& f, const tile_ref& a, const tile_ref& b) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  for (const tile_ref& tile : {a, b}) {
    const access what = of_tile(described(f, action::read, means::wgmma), f, tile);
    access_tile(f, tick(k, k.wgmmas, true, what), what, k.now, true, tile);
  }
}

void multiplied(fiber& f, int pending) {
  if (f.clock == nullptr) return;
  const std::uint32_t issued = time_of(f.clock->wgmmas), open = 2 * std::uint32_t(std::max(pending, 0));
  f.clock->now.landed.raise(f.clock->wgmmas, issued - std::min(issued, open));
}

// --- signals ----------------------------------------------------------------------------------------

stamp publish(fiber& f, const counters& c, int rank, int slot) {
  if (f.clock == nullptr) return nullptr;
  note_release(f, c.barrier ? release_note::barrier : release_note::signal, &c, rank, slot);
  worker_clock& k = *f.clock;
  if (k.published == nullptr || !(*k.published == k.now)) k.published = std::make_shared<const views>(k.now);
  return k.published;
}

void arrive(counters& c, int slot, int launch, const stamp& carried) {
  if (carried == nullptr) return;
  const auto index = std::size_t(c.index(slot, launch));
  if (c.arrived.size() <= index) c.arrived.resize(c.value.size());
  arrivals& a = c.arrived[index];
  if (!c.barrier && a.launch != launch) a.stamps.clear();
  a.launch = launch;
  a.stamps.push_back(carried);
}

namespace {

// What any `count` of the signals guarantee. Which of them are counted is a matter of the schedule, so each component
// is the count-th smallest: a set of signals that is closed under happens-before and has that many exists with just it.
template <class Component>
clock guaranteed(const std::vector<stamp>& stamps, std::size_t count, Component component) {
  clock result;
  std::size_t agents = 0;
  for (const stamp& s : stamps) agents = std::max(agents, component(*s).size());
  std::vector<std::uint32_t> times(stamps.size());
  for (std::size_t agent = 0; agent < agents; ++agent) {
    for (std::size_t i = 0; i < stamps.size(); ++i) times[i] = component(*stamps[i])[std::uint32_t(agent)];
    std::nth_element(times.begin(), times.begin() + std::ptrdiff_t(count - 1), times.end());
    result.raise(std::uint32_t(agent), times[count - 1]);
  }
  return result;
}

views guaranteed(const std::vector<stamp>& stamps, std::uint64_t count) {
  views v;
  if (count >= stamps.size()) {
    for (const stamp& s : stamps) v.join(*s);
  } else if (count > 0) {
    v.seen = guaranteed(stamps, count, [](const views& s) -> const clock& { return s.seen; });
    v.fenced = guaranteed(stamps, count, [](const views& s) -> const clock& { return s.fenced; });
    v.landed = guaranteed(stamps, count, [](const views& s) -> const clock& { return s.landed; });
  }
  return v;
}

}  // namespace

void wait(fiber& f, counters& c, int slot, std::uint64_t count) {
  if (f.clock == nullptr) return;
  worker_clock& k = *f.clock;
  k.waits.push_back({&c, slot, f.home->launch, count, f.at, ++moments});
  const auto index = std::size_t(c.index(slot, f.home->launch));
  if (index < c.arrived.size()) {
    arrivals& a = c.arrived[index];
    if (c.barrier) {
      const auto [at, fresh] = a.through.try_emplace(count);
      if (fresh) {  // all blocks of a rank wait for the same number
        at->second = guaranteed({a.stamps.begin(), a.stamps.begin() + std::ptrdiff_t(std::min<std::size_t>(count, a.stamps.size()))},
                                count);
      }
      k.now.join(at->second);
    } else if (a.launch == f.home->launch) {
      k.now.join(guaranteed(a.stamps, count));
    }
  }
  fence_by_leader(k);
  meet(f);
}

}  // namespace pk::sim::order
