// Runs many schedules: those that the request lists, or every order of synchronization. The exhaustive search is dynamic
// partial-order reduction (Flanagan and Godefroid, POPL 2005) with sleep sets (Godefroid 1996) and the source sets of
// Abdulla, Aronis, Jonsson and Sagonas (POPL 2014): it runs one schedule, looks in its record for pairs of events whose
// order could have been the other way and would matter, and runs a schedule for each. Nothing is kept between schedules
// but the path in the tree of choices: each is run from its beginning, in a process of its own.
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "explore.h"
#include "search.h"

namespace pk::sim {

namespace {

shared_record* shared = nullptr;  // of the forked process and this one
bool child = false;

double seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Runs one schedule; how it ended. A process that dies without a word has failed.
branch run_one(const plan& p, double wall) {
  std::remove(finding_file);
  shared->reset();
  const pid_t id = fork();
  if (id < 0) report_fault(nullptr, "request", "cannot fork a process for a schedule: the limit of processes is too low");
  if (id == 0) {
    child = true;
    w.ask.schedule = p;
    run_functional(wall);
  }
  int status = 0;
  while (waitpid(id, &status, 0) < 0 && errno == EINTR) {}
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return branch::failed;
  return shared->end;
}

struct progress {
  const double begun = seconds();
  int run = 0, redundant = 0;
  std::uint64_t steps = 0;
  bool complete = false;
  std::string stopped, last;
  std::vector<std::uint64_t> outputs;  // hashes of the sets of outputs
  std::vector<std::string> output_schedules;

  double left() const { return w.ask.exploration_wall - (seconds() - begun); }
  bool out_of_time() { return left() > 0 ? false : (stopped = "wall", true); }
};

// Keeps the outputs of a schedule when they differ from all those before. False when there are too many kinds.
bool keep_outputs(progress& done) {
  const std::uint64_t hash = shared->outputs;
  if (std::find(done.outputs.begin(), done.outputs.end(), hash) != done.outputs.end()) return true;
  if (done.outputs.size() == most_output_sets) return done.stopped = "outputs", false;
  const std::size_t set = done.outputs.size();
  for (const tensor_decl& d : w.ask.tensors)
    for (int launch = 0; d.output && launch < w.ask.launches; ++launch)
      for (int rank = 0; rank < w.ask.world; ++rank)
        std::rename(printf_string("out.%d.%d.%s.bin", launch, rank, d.name.c_str()).c_str(),
                    printf_string("out%zu.%d.%d.%s.bin", set, launch, rank, d.name.c_str()).c_str());
  done.outputs.push_back(hash);
  done.output_schedules.push_back(done.last);
  return true;
}

// One schedule of the plan and what follows from it; false when the exploration is to end.
bool account(progress& done, const plan& p, branch end) {
  done.last = p.strategy == "exhaustive" ? shared->schedule() : p.text();
  if (end == branch::redundant) return ++done.redundant, true;
  if (end == branch::diverged || end == branch::too_long)
    return done.stopped = end == branch::diverged ? "diverged" : "too_long", false;
  ++done.run;
  done.steps = std::max(done.steps, shared->steps);
  if (end == branch::failed) return done.stopped = "finding", false;
  std::rename(finding_file, finished_file);
  return keep_outputs(done);
}

double wall_of(const progress& done) { return std::min(w.ask.wall_seconds, std::max(done.left(), shortest_wall)); }

void run_listed(progress& done) {
  for (plan p : w.ask.schedules) {
    if (p.horizon == 0) p.horizon = std::max<std::uint64_t>(done.steps, shortest_horizon);
    if (done.out_of_time() || !account(done, p, run_one(p, wall_of(done)))) return;
  }
}

void run_exhaustive(progress& done) {
  search tree;
  plan p;
  p.strategy = "exhaustive";
  while (!done.out_of_time()) {
    if (done.run + done.redundant >= w.ask.most_schedules) return void(done.stopped = "number");
    p.follow = &tree.path(), p.asleep = &tree.asleep();
    if (!account(done, p, run_one(p, wall_of(done)))) return;
    if (!tree.advance(*shared)) return void(done.complete = true);
  }
}

}  // namespace

bool exploring() { return child; }

void record_event(const event& e, std::size_t choice, const past& before, const past& all) {
  if (shared == nullptr) return;
  if (!shared->add(e, choice, before, all)) end_of_branch(branch::too_long);
}

void end_of_branch(branch how) {
  shared->end = how;
  _exit(0);
}

void note_steps(std::uint64_t steps) {
  if (child) shared->steps = steps;
}

void note_output(std::uint64_t hash) {
  if (child) shared->outputs += hash;
}

void explore() {
  void* at = mmap(nullptr, sizeof(shared_record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) report_fault(nullptr, "request", "no memory for the record of a schedule");
  shared = new (at) shared_record;
  progress done;
  w.ask.exhaustive ? run_exhaustive(done) : run_listed(done);
  exploration_summary out;
  out.run = done.run, out.redundant = done.redundant, out.complete = done.complete, out.steps = done.steps;
  out.stopped = done.stopped, out.last = done.last, out.output_schedules = done.output_schedules;
  write_exploration(out);
}

}  // namespace pk::sim
