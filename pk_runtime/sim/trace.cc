#include "trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "world.h"

namespace pk::sim {

namespace {

constexpr std::size_t most_slices = 200'000;
constexpr double joined_us = 2;  // a port's neighbouring transfers are one slice up to this length
constexpr double touching = 1e-9;

struct slice {
  const char* what;
  double from, to, bytes;
};
struct track {
  int rank, block, kind;  // block -1: a port
  bool communicator;
  std::vector<slice> slices;
};

std::vector<track> tracks;
std::map<std::array<int, 3>, std::size_t> known;
std::size_t slices = 0, left_out = 0;
double complete_until = 0;

track& track_of(int rank, int block, int kind, bool communicator) {
  const auto [at, fresh] = known.try_emplace({rank, block, kind}, tracks.size());
  if (fresh) tracks.push_back({rank, block, kind, communicator, {}});
  return tracks[at->second];
}

void add(track& t, const slice& s) {
  if (slices == most_slices) {
    if (left_out++ == 0) complete_until = s.from;
    return;
  }
  t.slices.push_back(s), ++slices;
}

// The first blocks of each kind, and the last: it has the fewest tasks.
bool sampled(const block& b) {
  const int comm = pk_program.comm_sms, all = w.ask.sms, compute = all - comm;
  const int index = b.communicator ? b.index - compute : b.index, count = b.communicator ? comm : compute;
  return index < w.ask.trace_blocks - 1 || index == count - 1;
}

void write(std::FILE* file, const track& t, bool& first) {
  static const char* ports[] = {"link out", "link in", "HBM"};
  for (const slice& s : t.slices) {
    std::fprintf(file, "%s\n[%d, %d, \"%s\", \"%s\", %.6f, %.6f, %.0f]", first ? "" : ",", t.rank, t.block,
                 t.block < 0 ? ports[t.kind] : name_of(sim::role(t.kind)), s.what, s.from, s.to - s.from, s.bytes);
    first = false;
  }
}

}  // namespace

void trace_worker(const fiber& f, const char* what, double from, double to) {
  if (w.ask.trace_blocks == 0 || !sampled(*f.home)) return;
  track& t = track_of(f.home->rank, f.home->index, int(f.role), f.home->communicator);
  if (!t.slices.empty() && std::strcmp(t.slices.back().what, what) == 0 && from - t.slices.back().to <= touching)
    t.slices.back().to = to;
  else
    add(t, {what, from, to, 0});
}

void trace_port(int rank, port p, double from, double to, double bytes) {
  if (w.ask.trace_blocks == 0 || to <= from) return;
  track& t = track_of(rank, -1, int(p), false);
  slice* last = t.slices.empty() ? nullptr : &t.slices.back();
  if (last != nullptr && from - last->to <= touching && to - last->from <= joined_us)
    last->to = to, last->bytes += bytes;
  else
    add(t, {"busy", from, to, bytes});
}

void write_trace() {
  if (w.ask.trace_blocks == 0) return;
  std::FILE* file = std::fopen("trace.json", "w");
  if (file == nullptr) return;
  std::fprintf(file, "{\"left_out\": %zu, \"complete_until_us\": %.6f, \"slices\": [", left_out, complete_until);
  bool first = true;
  for (const track& t : tracks) write(file, t, first);
  std::fprintf(file, "\n]}\n");
  std::fclose(file);
}

}  // namespace pk::sim
