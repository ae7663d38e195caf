// Timing mode: no arithmetic, a virtual clock. Fibers run in the order of their clocks. What a block or a rank's
// memory does is known when it is asked for; what crosses links ends when the fluid of timing_links.h says so, and
// whoever needs it waits until then.
//
// What it assumes of slabs: a load is issued at once and complete at its first use, so a group has as much in
// flight as it has slabs. A store or post holds the group until it has left the SM, and lands like an
// asynchronous store. Mailboxes stay in L2; their flags double the bytes.
#include <algorithm>
#include <cmath>
#include <queue>

#include "timing_flush.h"
#include "timing_links.h"
#include "timing_memory.h"

namespace pk::sim {

namespace {

class timing final : public machine {
 public:
  timing()
      : cost_(w.ask), memory_(w.ask.world, w.ask.parameter("l2_capacity_bytes"), cost_), links_(w.ask.world, cost_),
        under_way_(std::size_t(w.ask.world)) {}

  void load(fiber& f, ring_core& ring, int slot, const tile_ref& tile, const tensor_ref& src, coord at) override {
    in_order(f);
    const footprint area = covered(tile, src, at);
    const double start = issue(f, area);
    if (src.owner == rank_of(f)) {
      ring.full_at[slot] = std::max({ring.full_at[slot], fetch(f, area, start), start + cost_.tma_latency});
      return;
    }
    ++ring.loads_in_flight[slot];
    pull(f, area, src.owner, start, [&ring, slot, &home = *f.home](double there) {
      slot_landed(home, ring, slot, there);
      load_landed(ring, slot, there);
    });
  }

  double load_slab(fiber& f, const tile_ref& v, const tensor_ref& src, coord at) override {
    in_order(f);
    const footprint area = covered(v, src, at);
    if (src.owner == rank_of(f)) return fetch(f, area, f.now) + cost_.slab_latency;
    pulled_.push_back({});
    pulled& p = pulled_.back();
    pull(f, area, src.owner, f.now, [this, &p](double there) {
      p.at = there + cost_.slab_latency;
      wake(p.waiting, p.at);
    });
    return -double(pulled_.size());  // a ticket: the time is not known yet
  }

  double arrival_of(fiber& f, double ready_at) override {
    if (ready_at >= 0) return ready_at;
    pulled& p = pulled_[std::size_t(-ready_at) - 1];
    if (p.at < 0) {
      p.waiting = &f;
      park(f, waiting_for::load);
    }
    f.remote_until = std::max(f.remote_until, p.at);
    return p.at;
  }

  void store(fiber& f, std::shared_ptr<pending_store> s) override {
    in_order(f);
    const bool mail = s->mail != nullptr;
    const int to = s->target();
    footprint area{.bytes = flagged_bytes(s->src)};
    if (!mail) area = covered(s->src, s->dst, s->at);
    const double start = s->registers ? f.now : issue(f, area);
    s->went = f.went;
    if (to == rank_of(f)) keep(f, *s, area, start);
    else push(f, s, to, area, start);
    charge_transfer(f, to != rank_of(f), "store: leaving");
    f.stores.push_back(std::move(s));
  }

  // Whoever polls sees data and flags in the same look at L2.
  void read_letter(fiber& f, const letter& l, const tile_ref& v, double asked) override {
    const double bytes = flagged_bytes(v), before = f.now;
    double& port = f.home->memory_free;
    port = std::max({asked, l.arrived_at, port}) + cost_.poll + bytes / cost_.sm_memory;
    f.now = std::max(port, memory_.pass_l2(rank_of(f), bytes, f.now));
    f.waited[int(waiting_for::mailbox)] += f.now - before;
  }

  void drain(fiber& f, bool reads_only) override {
    for (std::size_t i = 0; i < f.stores.size(); ++i) {
      pending_store& s = *f.stores[i];
      if (!s.landed) {
        s.waiting = &f;
        park(f, waiting_for::store);
      }
      const double until = reads_only ? s.read_at : s.known_at;
      f.waited[int(waiting_for::store)] += std::max(0.0, until - f.now);
      f.now = std::max(f.now, until);
    }
    charge_stores(f, reads_only);
    std::erase_if(f.stores, [&](const auto& s) { return s->known_at <= f.now; });
  }

  // A release waits for what the thread sent before, its last signals to peers included.
  void post_signal(fiber& f, counters& c, int target, int slot, bool released) override {
    if (!released) {
      in_order(f);
      if (under_way_[std::size_t(rank_of(f))].wait(f)) park(f, waiting_for::store);
      charge_transfer(f, true, "wait: all this GPU has sent");
      f.now = std::max(f.now, f.signal_known_at) + cost_.release;
      charge(f, spent::synchronization, "signal");
      in_order(f);
    }
    const bool own = target == rank_of(f);
    f.signal_known_at = std::max(f.signal_known_at, f.now + (own ? cost_.l2_latency : cost_.peer_latency));
    deliver(c, slot, f.home->launch, rank_of(f), f.now + (own ? cost_.local_flag_latency : cost_.flag_latency));
  }

  void look(fiber& f) override {
    f.now += cost_.acquire;
    charge(f, spent::synchronization, "look at a signal");
  }

  void ready(fiber& f, double at) override {
    f.now = std::max(f.now, at);
    queue_.push({f.now, order_++, &f});
  }

  void hold(int rank, std::int64_t first_box, std::int64_t boxes) override { memory_.hold(rank, first_box, boxes); }
  void begin(int) override {}
  void end(int rank) override { launch_left(rank); }

  void in_order(fiber& f) override {
    if ((queue_.empty() || queue_.top().at >= f.now) && links_.next() >= f.now) return;
    ready(f, f.now);
    yield(f);
  }

  void mma_issue(fiber& f, double flops) override {
    block& b = *f.home;
    const double duration = flops / cost_.flops;
    b.tensor_free = std::max(f.now, b.tensor_free) + duration;
    f.mma_done[f.mma_issued++ % 8] = b.tensor_free;
    usage& u = w.ranks[b.rank].used;
    u.tensor += duration, u.flops += flops, u.last_mma = std::max(u.last_mma, b.tensor_free);
  }

  void mma_wait(fiber& f, int pending) override {
    const auto left = std::uint64_t(std::clamp(pending, 0, 7));
    if (f.mma_issued > left) f.now = std::max(f.now, f.mma_done[(f.mma_issued - left - 1) % 8]);
    charge(f, spent::compute, "multiply");
  }

  void vector_work(fiber& f, double elements, double shared_bytes) override {
    const double duration = elements / cost_.elements + shared_bytes / cost_.shared;
    f.now += duration;
    charge(f, spent::compute, "elementwise");
    w.ranks[rank_of(f)].used.vector += duration;
  }

  void run() override {
    while (!everything_finished()) {
      if (!queue_.empty() && queue_.top().at <= links_.next()) {
        fiber* f = queue_.top().f;
        queue_.pop();
        resume(*f);
      } else if (std::isfinite(links_.next())) {
        links_.advance();
      } else if (!advance_launches()) {
        report_deadlock();
      }
      if (queue_.empty()) advance_launches();
    }
    finish_run();
  }

 private:
  struct entry {
    double at;
    std::uint64_t order;  // first come, first served among equals
    fiber* f;
    bool operator<(const entry& o) const { return at != o.at ? at > o.at : order > o.order; }
  };
  struct pulled {
    double at = -1;
    fiber* waiting = nullptr;
  };

  // In a mailbox every 4 bytes travel with a flag of 4.
  static double flagged_bytes(const tile_ref& v) { return 2.0 * v.rows * v.cols * element_bytes(v.type); }

  // One tensor-map instruction per box.
  double issue(fiber& f, const footprint& a) {
    block& b = *f.home;
    const double start = std::max(f.now, b.tma_free);
    b.tma_free = start + a.down * a.across * cost_.tma_issue;
    return start;
  }

  // Brings bytes of the own memory into this SM: when the last are there.
  double fetch(fiber& f, const footprint& a, double start) {
    const double fetched = memory_.read(rank_of(f), a, start);
    f.home->memory_free = std::max(start, f.home->memory_free) + a.bytes / cost_.sm_memory;
    return std::max(fetched, f.home->memory_free + cost_.l2_latency);
  }

  // The same from a peer, whose memory and links have to deliver them.
  void pull(fiber& f, const footprint& a, int owner, double start, links::done then) {
    const double fetched = memory_.read(owner, a, start);
    const double least = f.home->memory_free = std::max(start, f.home->memory_free) + a.bytes / cost_.sm_link_load;
    cross(owner, rank_of(f), mechanism::load, a.bytes, start,
          [=, this, then = std::move(then)](double passed) { then(std::max({passed, fetched, least}) + cost_.peer_latency); });
  }

  // Mailboxes stay in L2.
  double into_memory(int rank, const pending_store& s, const footprint& a, double at) {
    return s.mail != nullptr ? memory_.pass_l2(rank, a.bytes, at) : memory_.write(rank, a, at);
  }

  // Into the own memory.
  void keep(fiber& f, pending_store& s, const footprint& a, double start) {
    f.home->memory_free = std::max(start, f.home->memory_free) + a.bytes / cost_.sm_memory;
    s.read_at = std::max(into_memory(rank_of(f), s, a, start), f.home->memory_free);
    if (s.registers) f.now = s.read_at;
    else s.read_at += cost_.tma_latency;
    s.landed_at = s.known_at = s.read_at + cost_.l2_latency, s.landed = true;
    if (s.mail != nullptr) deliver_letter(s);
  }

  // To a peer. Registers are free when the SM has sent them; a tile when it has passed the links.
  void push(fiber& f, const std::shared_ptr<pending_store>& s, int to, const footprint& a, double start) {
    const double sent = f.home->link_free = std::max(start, f.home->link_free) + a.bytes / cost_.sm_link;
    memory_.pass_l2(rank_of(f), a.bytes, start);
    if (s->registers) f.now = std::max(f.now, sent);
    const mechanism how = s->registers ? mechanism::store : s->add ? mechanism::reduce : mechanism::push;
    flush& under_way = under_way_[std::size_t(rank_of(f))];
    const std::uint64_t number = under_way.begin();
    cross(rank_of(f), to, how, a.bytes, start, [this, s, sent, to, a, number, &under_way](double passed) {
      into_memory(to, *s, a, passed);
      s->read_at = std::max(passed, sent) + (s->registers ? 0 : cost_.tma_latency);
      s->landed_at = s->read_at + cost_.link_latency;
      s->known_at = s->read_at + cost_.peer_latency, s->landed = true;
      if (s->mail != nullptr) deliver_letter(*s);
      wake(s->waiting, s->read_at);
      under_way.end(number, [&](fiber& waits) { ready(waits, s->known_at); });
    });
  }

  static void deliver_letter(pending_store& s) {
    s.mail->went = s.went;
    deliver(*s.mail, s.launch, {}, s.landed_at);
  }

  void cross(int from, int to, mechanism how, double bytes, double at, links::done then) {
    usage &sender = w.ranks[std::size_t(from)].used, &receiver = w.ranks[std::size_t(to)].used;
    sender.link_out += bytes / links_.rate(how), sender.out_bytes += bytes;
    receiver.link_in += bytes / links_.rate(how), receiver.in_bytes += bytes;
    links_.send(from, to, how, bytes, at, std::move(then));
  }

  void wake(fiber*& waiting, double at) {
    if (waiting != nullptr) ready(*waiting, at);
    waiting = nullptr;
  }

  costs cost_;
  memories memory_;
  links links_;
  std::vector<flush> under_way_;  // by rank
  std::deque<pulled> pulled_;
  std::priority_queue<entry> queue_;
  std::uint64_t order_ = 0;
};

}  // namespace

std::unique_ptr<machine> make_timing() { return std::make_unique<timing>(); }

}  // namespace pk::sim
