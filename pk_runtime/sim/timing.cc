// Timing mode: no arithmetic, a virtual clock. Fibers run in the order of their clocks; shared resources
// are first-come-first-served servers whose rates come from the hardware sheet.
//
// What it assumes of slabs: a load is issued at once and complete at its first use, so a group has as much in
// flight as it has slabs. A store or post holds the group until the bytes have left the SM, and lands like an
// asynchronous store. Mailboxes stay in L2; their flags double the bytes.
#include <algorithm>
#include <queue>

#include "l2.h"
#include "world.h"

namespace pk::sim {

namespace {

// Something that handles one request after another.
struct server {
  double free = 0;
  double serve(double at, double duration) {
    free = std::max(at, free) + duration;
    return free;
  }
};

struct ports {
  server hbm, l2, out, in;
};

class timing final : public machine {
 public:
  timing()
      : ports_(std::size_t(w.ask.world)),
        cache_(w.ask.world, std::int64_t(w.ask.parameter("l2_bytes")) / box_bytes) {
    const request& p = w.ask;
    flops_per_us_ = p.parameter("tensor_flops_per_us") / p.parameter("sms");
    elements_per_us_ = p.parameter("vector_flops_per_us") / 2 / p.parameter("sms");  // a multiply-add is two
    smem_ = p.parameter("sm_shared_bytes_per_us"), sm_memory_ = p.parameter("sm_memory_bytes_per_us");
    hbm_ = p.parameter("hbm_bytes_per_us"), l2_ = p.parameter("l2_bytes_per_us");
    hbm_latency_ = p.parameter("hbm_latency_us"), l2_latency_ = p.parameter("l2_latency_us");
    issue_ = p.parameter("tma_issue_us");
    sm_link_ = p.parameter("sm_link_bytes_per_us");
    out_ = p.parameter("link_out_bytes_per_us"), in_ = p.parameter("link_in_bytes_per_us");
    reduce_ = p.parameter("link_reduce_bytes_per_us");
    link_latency_ = p.parameter("link_latency_us"), flag_latency_ = p.parameter("flag_latency_us");
    local_flag_latency_ = p.parameter("local_flag_latency_us");
  }

  void load(fiber& f, ring_core& ring, int slot, const tile_ref& tile, const tensor_ref& src, coord at) override {
    in_order(f);
    const footprint area = covered(tile, src, at);
    ring.full_at[slot] = std::max(ring.full_at[slot], fetch(f, area, src.owner, issue(f, area)));
  }

  void store(fiber& f, std::shared_ptr<pending_store> s) override {
    in_order(f);
    if (s->mail != nullptr) {
      const double bytes = flagged_bytes(s->src);
      write(f, *s, s->to, bytes, f.now);
      use_l2(s->to, bytes);
      deliver(*s->mail, s->launch, {}, s->landed_at);
    } else {
      const footprint area = covered(s->src, s->dst, s->at);
      const double start = s->registers ? f.now : issue(f, area);
      write(f, *s, s->dst.owner, area.bytes, start);
      write_memory(s->dst.owner, area, start);
    }
    if (s->registers) f.now = std::max(f.now, s->read_at);
    f.stores.push_back(std::move(s));
  }

  double load_slab(fiber& f, const tile_ref& v, const tensor_ref& src, coord at) override {
    in_order(f);
    return fetch(f, covered(v, src, at), src.owner, f.now);
  }

  // Whoever polls sees the flags without another trip to L2.
  void read_letter(fiber& f, const letter& l, const tile_ref& v, double asked) override {
    const double bytes = flagged_bytes(v), before = f.now;
    double& port = f.home->memory_free;
    port = std::max({asked + l2_latency_, l.arrived_at, port}) + bytes / sm_memory_;
    f.now = std::max(port, ports_[std::size_t(rank_of(f))].l2.serve(f.now, bytes / l2_));
    use_l2(rank_of(f), bytes);
    f.waited[int(waiting_for::mailbox)] += f.now - before;
  }

  void drain(fiber& f, bool reads_only) override {
    for (const auto& s : f.stores) f.now = std::max(f.now, reads_only ? s->read_at : s->landed_at);
    std::erase_if(f.stores, [&](const auto& s) { return s->landed_at <= f.now; });
  }

  void post_signal(fiber& f, counters& c, int target, int slot) override {
    in_order(f);
    const double arrival = f.now + (target == rank_of(f) ? local_flag_latency_ : flag_latency_);
    deliver(c, slot, f.home->launch, rank_of(f), arrival);
  }

  void ready(fiber& f, double at) override {
    f.now = std::max(f.now, at);
    queue_.push({f.now, order_++, &f});
  }

  void begin(int) override {}
  void end(int rank) override { launch_left(rank); }

  void in_order(fiber& f) override {
    if (queue_.empty() || queue_.top().at >= f.now) return;
    ready(f, f.now);
    yield(f);
  }

  void mma_issue(fiber& f, double flops) override {
    block& b = *f.home;
    const double duration = flops / flops_per_us_;
    b.tensor_free = std::max(f.now, b.tensor_free) + duration;
    f.mma_done[f.mma_issued++ % 8] = b.tensor_free;
    usage& u = w.ranks[b.rank].used;
    u.tensor += duration, u.flops += flops, u.last_mma = std::max(u.last_mma, b.tensor_free);
  }

  void mma_wait(fiber& f, int pending) override {
    const auto left = std::uint64_t(std::clamp(pending, 0, 7));
    if (f.mma_issued > left) f.now = std::max(f.now, f.mma_done[(f.mma_issued - left - 1) % 8]);
  }

  void vector_work(fiber& f, double elements, double shared_bytes) override {
    const double duration = elements / elements_per_us_ + shared_bytes / smem_;
    f.now += duration;
    w.ranks[rank_of(f)].used.vector += duration;
  }

  void run() override {
    while (!everything_finished()) {
      if (!queue_.empty()) {
        fiber* f = queue_.top().f;
        queue_.pop();
        resume(*f);
        if (queue_.empty()) advance_launches();
      } else if (!advance_launches()) {
        report_deadlock();
      }
    }
    finish_run();
  }

 private:
  static constexpr int box_rows = 64, box_width = 128, box_bytes = box_rows * box_width;

  // The part of a tile or slab inside the tensor, as boxes. A slab need not fill its boxes; L2 brings in whole ones.
  struct footprint {
    std::int64_t first_box;
    int down, across, row_of_boxes;
    double bytes, bytes_of_boxes;
  };
  struct crossing {
    double read, landed;
  };
  struct entry {
    double at;
    std::uint64_t order;  // first come, first served among equals
    fiber* f;
    bool operator<(const entry& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  static footprint covered(const tile_ref& tile, const tensor_ref& t, coord at) {
    const int size = element_bytes(t.type);
    const int rows = min(tile.rows, t.rows - at.row * tile.rows), cols = min(tile.cols, t.cols - at.col * tile.cols);
    const int boxes_across = ceil_div(t.cols * size, box_width), boxes_down = ceil_div(t.rows, box_rows);
    const span down = boxes(at.row * tile.rows, rows, t.rows, box_rows);
    const span across = boxes(at.col * tile.cols * size, cols * size, t.cols * size, box_width);
    return {t.first_box + (std::int64_t(at.plane) * boxes_down + down.first) * boxes_across + across.first, down.count,
            across.count, boxes_across, double(rows) * cols * size, double(down.extent) * across.extent};
  }

  // Boxes of `unit` that [start, start + length) touches, and how much of them lies below `end`.
  struct span {
    int first, count, extent;
  };
  static span boxes(int start, int length, int end, int unit) {
    const int first = start / unit, after = (start + length - 1) / unit + 1;
    return {first, after - first, min(end, after * unit) - first * unit};
  }

  // In a mailbox every 4 bytes travel with a flag of 4.
  static double flagged_bytes(const tile_ref& v) { return 2.0 * v.rows * v.cols * element_bytes(v.type); }

  // One tensor-map instruction per box.
  double issue(fiber& f, const footprint& a) {
    block& b = *f.home;
    const double start = std::max(f.now, b.tma_free);
    b.tma_free = start + a.down * a.across * issue_;
    return start;
  }

  double missing_share(int rank, const footprint& a) {
    int misses = 0;
    for (int i = 0; i < a.down; ++i)
      for (int j = 0; j < a.across; ++j)
        if (!cache_.touch(rank, a.first_box + std::int64_t(i) * a.row_of_boxes + j)) ++misses;
    usage& u = w.ranks[std::size_t(rank)].used;
    u.l2_misses += misses, u.l2_hits += a.down * a.across - misses;
    return double(misses) / (a.down * a.across);
  }

  void use_l2(int rank, double bytes) {
    usage& u = w.ranks[std::size_t(rank)].used;
    u.l2 += bytes / l2_, u.l2_bytes += bytes;
  }

  double read_memory(int rank, const footprint& a, double at) {
    ports& p = ports_[std::size_t(rank)];
    usage& u = w.ranks[std::size_t(rank)].used;
    const double missing = missing_share(rank, a) * a.bytes_of_boxes;
    double done = p.l2.serve(at, a.bytes / l2_) + l2_latency_;
    use_l2(rank, a.bytes);
    if (missing > 0) done = std::max(done, p.hbm.serve(at, missing / hbm_) + hbm_latency_);
    u.hbm += missing / hbm_, u.hbm_bytes += missing;
    return done;
  }

  // Written lines stay in L2 and go to memory in the background.
  void write_memory(int rank, const footprint& a, double at) {
    missing_share(rank, a);
    ports_[std::size_t(rank)].hbm.serve(at, a.bytes / hbm_);
    usage& u = w.ranks[std::size_t(rank)].used;
    u.hbm += a.bytes / hbm_, u.hbm_bytes += a.bytes;
    use_l2(rank, a.bytes);
  }

  // One SM can drive only part of a link; a link has a rate out of the sender and one into the receiver.
  crossing cross(block& b, int from, int to, double bytes, double at, bool add) {
    b.link_free = std::max(at, b.link_free) + bytes / sm_link_;
    const double out_rate = add ? min_rate(out_, reduce_) : out_, in_rate = add ? min_rate(in_, reduce_) : in_;
    const double sent = ports_[std::size_t(from)].out.serve(at, bytes / out_rate);
    const double received = ports_[std::size_t(to)].in.serve(at, bytes / in_rate);
    usage &sender = w.ranks[std::size_t(from)].used, &receiver = w.ranks[std::size_t(to)].used;
    sender.link_out += bytes / out_rate, sender.out_bytes += bytes;
    receiver.link_in += bytes / in_rate, receiver.in_bytes += bytes;
    const double read = std::max(b.link_free, sent);
    return {read, std::max(read, received) + link_latency_};
  }

  // Brings `owner`'s bytes into this SM; returns when the last are there.
  double fetch(fiber& f, const footprint& a, int owner, double start) {
    const double fetched = read_memory(owner, a, start);
    if (owner != rank_of(f))
      return std::max(cross(*f.home, owner, rank_of(f), a.bytes, start, false).landed, fetched + link_latency_);
    f.home->memory_free = std::max(start, f.home->memory_free) + a.bytes / sm_memory_;
    return std::max(fetched, f.home->memory_free + l2_latency_);
  }

  // Sends bytes to `owner`: when they have left this SM's tile or registers, and when they have landed.
  void write(fiber& f, pending_store& s, int owner, double bytes, double start) {
    if (owner != rank_of(f)) {
      const crossing c = cross(*f.home, rank_of(f), owner, bytes, start, s.add);
      s.read_at = c.read, s.landed_at = c.landed;
      return;
    }
    s.read_at = ports_[std::size_t(owner)].l2.serve(start, bytes / l2_);
    if (s.registers) {
      f.home->memory_free = std::max(start, f.home->memory_free) + bytes / sm_memory_;
      s.read_at = std::max(s.read_at, f.home->memory_free);
    }
    s.landed_at = s.read_at + l2_latency_;
  }

  static double min_rate(double a, double b) { return a < b ? a : b; }

  std::vector<ports> ports_;
  l2_cache cache_;
  std::priority_queue<entry> queue_;
  std::uint64_t order_ = 0;
  double flops_per_us_, elements_per_us_, smem_, sm_memory_, hbm_, l2_, hbm_latency_, l2_latency_, issue_, sm_link_, out_, in_,
      reduce_, link_latency_, flag_latency_, local_flag_latency_;
};

}  // namespace

std::unique_ptr<machine> make_timing() { return std::make_unique<timing>(); }

}  // namespace pk::sim
