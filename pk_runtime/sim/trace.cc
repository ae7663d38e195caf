#include "trace.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "world.h"

namespace pk::sim {

namespace {

constexpr std::size_t most_slices = 200'000, most_intervals = 4096;
constexpr double touching = 1e-9;

struct slice {
  const char* what;
  double from, to;
};
struct track {
  int rank, block;
  sim::role role;
  std::vector<slice> slices;
};

// Use of one port, by intervals of equal length.
struct load {
  double busy = 0, bytes = 0;
};
struct meter {
  double width = 0.25;
  std::vector<load> intervals;

  void add(double from, double to, double busy, double bytes) {
    while (to > width * most_intervals) halve();
    const auto last = std::size_t(to / width);
    if (intervals.size() <= last) intervals.resize(last + 1);
    for (auto i = std::size_t(from / width); i <= last; ++i) {
      const double share = (std::min(to, (i + 1) * width) - std::max(from, i * width)) / (to - from);
      intervals[i].busy += share * busy, intervals[i].bytes += share * bytes;
    }
  }

  void halve() {
    for (std::size_t i = 0; i < intervals.size(); ++i)
      if (i % 2 == 0) intervals[i / 2] = intervals[i];
      else intervals[i / 2].busy += intervals[i].busy, intervals[i / 2].bytes += intervals[i].bytes;
    intervals.resize((intervals.size() + 1) / 2);
    width *= 2;
  }
};

std::vector<track> tracks;
std::map<std::array<int, 3>, std::size_t> known;
std::vector<meter> meters;  // [rank * ports + port]
std::size_t slices = 0, left_out = 0;
double complete_until = 0;

track& track_of(const fiber& f) {
  const block& b = *f.home;
  const auto [at, fresh] = known.try_emplace({b.rank, b.index, int(f.role)}, tracks.size());
  if (fresh) tracks.push_back({b.rank, b.index, f.role, {}});
  return tracks[at->second];
}

// The first blocks of each kind, and the last: it has the fewest tasks.
bool sampled(const block& b) {
  const int comm = pk_program.comm_sms, compute = w.ask.sms - comm;
  const int index = b.communicator ? b.index - compute : b.index, count = b.communicator ? comm : compute;
  return index < w.ask.trace_blocks - 1 || index == count - 1;
}

void write(std::FILE* file, const track& t, bool& first) {
  for (const slice& s : t.slices) {
    std::fprintf(file, "%s\n[%d, %d, \"%s\", \"%s\", %.6f, %.6f]", first ? "" : ",", t.rank, t.block, name_of(t.role), s.what,
                 s.from, s.to - s.from);
    first = false;
  }
}

void write(std::FILE* file, const meter& m, int rank, int port) {
  static const char* names[] = {"link out", "link in", "HBM"};
  std::fprintf(file, "%s\n[%d, \"%s\", %.6f, [", rank + port == 0 ? "" : ",", rank, names[port], m.width);
  for (std::size_t i = 0; i < m.intervals.size(); ++i)
    std::fprintf(file, "%s[%.6f, %.0f]", i == 0 ? "" : ", ", m.intervals[i].busy, m.intervals[i].bytes);
  std::fputs("]]", file);
}

}  // namespace

void trace_worker(const fiber& f, const char* what, double from, double to) {
  if (w.ask.trace_blocks == 0 || !sampled(*f.home)) return;
  std::vector<slice>& of = track_of(f).slices;
  if (!of.empty() && std::strcmp(of.back().what, what) == 0 && from - of.back().to <= touching) {
    of.back().to = to;
  } else if (slices < most_slices) {
    of.push_back({what, from, to}), ++slices;
  } else if (left_out++ == 0) {
    complete_until = from;
  }
}

void trace_port(int rank, port p, double from, double to, double busy, double bytes) {
  if (w.ask.trace_blocks == 0 || to <= from) return;
  if (meters.empty()) meters.resize(std::size_t(w.ask.world) * ports);
  meters[std::size_t(rank * ports + int(p))].add(from, to, busy, bytes);
}

void write_trace() {
  if (w.ask.trace_blocks == 0) return;
  std::FILE* file = std::fopen("trace.json", "w");
  if (file == nullptr) return;
  std::fprintf(file, "{\"left_out\": %zu, \"complete_until_us\": %.6f, \"slices\": [", left_out, complete_until);
  bool first = true;
  for (const track& t : tracks) write(file, t, first);
  std::fputs("\n], \"ports\": [", file);
  for (std::size_t i = 0; i < meters.size(); ++i) write(file, meters[i], int(i) / ports, int(i) % ports);
  std::fputs("\n]}\n", file);
  std::fclose(file);
}

}  // namespace pk::sim
