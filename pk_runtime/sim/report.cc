// report.json: how the run ended and everything needed to say why. Each function here ends the process.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "race.h"
#include "report.h"
#include "search.h"
#include "trace.h"

namespace pk::sim {

std::string printf_string(const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string describe(const fiber& f) {
  return printf_string("rank %d block %d %s (launch %d)", f.home->rank, f.home->index, name_of(f.role), f.home->launch);
}

void write_and_exit(std::vector<std::string> fields, ending how) {
  note_steps(w.steps);
  // What else went wrong may well follow from a race.
  if (how == ending::failed && race_was_found()) {
    std::vector<std::string> race = race_fields();
    race.insert(race.begin(), field("summary", race_summary()));
    fields.push_back(quoted("race") + ": " + object(race));
  }
  std::FILE* file = std::fopen(exploring() ? finding_file : "report.json", "w");
  if (file == nullptr) _exit(70);
  const std::string text = object(fields) + "\n";
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
  if (exploring()) end_of_branch(how == ending::finished ? branch::finished : branch::failed);
  _exit(0);  // fibers are in the middle of their work: nothing may be destroyed
}

std::vector<std::string> place(const fiber& f) {
  return {field("rank", f.home->rank), field("block", f.home->index), field("role", name_of(f.role)),
          field("launch", f.home->launch), field("line", mark_of(f.at))};
}

namespace {

// Ends of the blocks' work, averaged: after these a part of the SMs is idle.
std::vector<std::string> mean_ends(const rank_state& r) {
  double last_mma = 0, ended = 0;
  int compute = 0, working = 0;
  for (const auto& b : r.blocks) {
    if (!b->communicator) last_mma += b->tensor_free, ++compute;
    if (b->ended > 0) ended += b->ended, ++working;
  }
  return {field("mean_last_mma_us", last_mma / std::max(compute, 1)), field("mean_ended_us", ended / std::max(working, 1)),
          field("ended_us", r.left_at), field("blocks", compute), field("working_blocks", working)};
}

std::string rank_usage(int rank) {
  const rank_state& r = w.ranks[rank];
  const usage& u = r.used;
  double waits[4][wait_reasons] = {};
  for (const auto& f : r.fibers)
    for (int i = 0; i < wait_reasons; ++i) waits[int(f->role)][i] += f->waited[i];
  static const char* reasons[] = {"", "ring_slot", "ring_data", "signal", "barrier", "peers_to_enter",
                                  "mailbox", "load", "store"};
  std::vector<std::string> waited;
  for (int role = 0; role < 4; ++role)
    for (int i = 1; i < wait_reasons; ++i)
      if (waits[role][i] > 0)
        waited.push_back(field((std::string(name_of(sim::role(role))) + "." + reasons[i]).c_str(), waits[role][i]));
  std::vector<std::string> fields = mean_ends(r);
  fields.insert(fields.end(), {field("finished_us", u.finished), field("last_mma_us", u.last_mma), field("tensor_busy_us", u.tensor),
                 field("vector_busy_us", u.vector), field("hbm_busy_us", u.hbm), field("l2_busy_us", u.l2),
                 field("link_out_busy_us", u.link_out), field("link_in_busy_us", u.link_in), field("flops", u.flops),
                 field("hbm_bytes", u.hbm_bytes), field("l2_bytes", u.l2_bytes), field("link_out_bytes", u.out_bytes),
                 field("link_in_bytes", u.in_bytes), field("l2_hits", u.l2_hits), field("l2_misses", u.l2_misses),
                 quoted("waited_us") + ": " + object(waited)});
  return object(fields);
}

// What the whole time went to, along the chain of causes that ends with the last worker; see path.h. The rest of
// time_us is the launch.
std::string critical_path(double end) {
  int rank = 0;
  for (int r = 1; r < w.ask.world; ++r)
    if (w.ranks[std::size_t(r)].left_at > w.ranks[std::size_t(rank)].left_at) rank = r;
  path p = w.ranks[std::size_t(rank)].went;
  p.us[int(spent::synchronization)] += end - p.until;
  return object({field("rank", rank), field("compute_us", p.us[int(spent::compute)]),
                 field("memory_us", p.us[int(spent::memory)]), field("link_us", p.us[int(spent::link)]),
                 field("synchronization_us", p.us[int(spent::synchronization)])});
}

// A counter that is used gets exactly per_launch signals in every launch; otherwise a later launch starts
// from a wrong epoch.
void check_signal_totals() {
  for (int rank = 0; rank < w.ask.world; ++rank)
    for (const counters& c : w.ranks[rank].signals) {
      if (c.barrier) continue;
      for (int slot = 0; slot < c.slots; ++slot)
        for (int launch = 0; launch < w.ask.launches; ++launch) {
          int total = 0;
          for (int r = 0; r < w.ask.world; ++r) total += c.from[launch][std::size_t(slot) * w.ask.world + r];
          const bool used = c.value[slot] + c.value[c.slots + slot] > 0;
          if (!used || total == c.per_launch) continue;
          const std::string text = printf_string(
              "signal '%s' slot %d of rank %d got %d signals in launch %d and setup() declares %d per launch: a later "
              "launch would start from a wrong epoch", c.name.c_str(), slot, rank, total, launch, c.per_launch);
          write_and_exit({field("outcome", "dirty"), field("summary", text), field("signal", c.name), field("slot", slot),
                          field("rank", rank), field("launch", launch), field("expected", c.per_launch), field("seen", total)});
        }
    }
}

}  // namespace

void finish_run() {
  if (race_was_found()) {
    std::vector<std::string> fields = race_fields();
    fields.insert(fields.begin(), {field("outcome", "race"), field("summary", race_summary())});
    write_and_exit(fields, ending::raced);
  }
  check_signal_totals();
  std::vector<std::string> ranks;
  double end = 0;
  for (int r = 0; r < w.ask.world; ++r) {
    ranks.push_back(rank_usage(r));
    end = std::max(end, w.ranks[r].used.finished);
  }
  std::vector<std::string> fields = {field("outcome", "finished"), field("kernel", pk_program.name),
                                     field("steps", double(w.steps)), field("comm_sms", pk_program.comm_sms)};
  std::vector<std::string> notes;
  for (const std::string& text : race_notes()) notes.push_back(quoted(text));
  if (!notes.empty()) fields.push_back(quoted("notes") + ": " + array(notes));
  std::vector<std::string> asked;
  for (const rank_state& r : w.ranks) {
    std::vector<std::string> each;
    for (const auto& [name, value] : figures(r.asked)) each.push_back(field(name, value / w.ask.launches));
    asked.push_back(object(each));
  }
  fields.push_back(quoted("demand") + ": " + array(asked));
  if (w.ask.timing) {
    const double launch = w.ask.parameter("graph_launch_us") + w.ask.parameter("enter_us");  // before any role begins
    fields.push_back(field("time_us", end + launch));
    fields.push_back(field("launch_us", launch));
    fields.push_back(quoted("path") + ": " + critical_path(end));
    fields.push_back(quoted("ranks") + ": " + array(ranks));
    write_trace();
  }
  write_and_exit(fields, ending::finished);
}

void write_exploration(const exploration_summary& e) {
  std::string of_last;  // the report of the run that found something, or of the last that finished
  if (std::FILE* file = std::fopen(e.stopped == "finding" ? finding_file : finished_file, "r")) {
    char text[4096];
    for (std::size_t n; (n = std::fread(text, 1, sizeof text, file)) > 0;) of_last.append(text, n);
    std::fclose(file);
  }
  std::vector<std::string> kinds;
  for (const std::string& s : e.output_schedules) kinds.push_back(quoted(s));
  std::vector<std::string> fields = {
      field("outcome", "explored"), field("kernel", pk_program.name), field("schedules_run", e.run),
      field("redundant", e.redundant), quoted("complete") + (e.complete ? ": true" : ": false"),
      field("steps", double(e.steps)), field("stopped_by", e.stopped), field("last_schedule", e.last),
      quoted("outputs") + ": " + array(kinds)};
  if (!of_last.empty()) fields.push_back(quoted("last_report") + ": " + of_last);
  write_and_exit(fields, ending::finished);
}

void report_fault(const fiber* f, const std::string& kind, const std::string& message) {
  std::vector<std::string> fields = {field("outcome", "fault"), field("kind", kind),
                                     field("summary", message + (f == nullptr ? "" : mark_of(f->at)))};
  if (f != nullptr)
    for (auto& p : place(*f)) fields.push_back(p);
  write_and_exit(fields);
}

void report_timeout(const std::string& message) {
  std::vector<std::string> fields = {field("outcome", "timeout"), field("class", "livelock"),
                                     field("summary", message + (w.running == nullptr ? "" : mark_of(w.running->at)))};
  if (w.running != nullptr)
    for (auto& p : place(*w.running)) fields.push_back(p);
  write_and_exit(fields);
}

}  // namespace pk::sim
