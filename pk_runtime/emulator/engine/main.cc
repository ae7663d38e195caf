// The emulator's program: reads request.txt, launches the kernel it is linked with on every rank, several times back
// to back, writes report.json and the outputs.
//
//   world 2    launches 3    blocks 2    seed 7    input x bf16 64 128    output y bf16 64 128
#include <pk/sm90/entry.h>
#include <pk/sm90/host.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "report.h"

extern "C" {
extern const pk::sm90::description pk_description;
int pk_setup(const pk::sm90::host_calls*, void* args, pk::sm90::launch*, char* message, int message_bytes);
int pk_prepare(int* resident);
int pk_launch(cudaStream_t, int blocks, int cooperative, const void* args, const pk::sm90::launch*);
}

namespace pk::emulated {

namespace {

struct tensor {
  std::string name;
  sm90::dtype type{};
  bool output = false;
  std::vector<int> dims;
  std::vector<unsigned char*> data;  // by rank

  int element() const { return sm90::element_bytes(type); }
  std::size_t count() const {
    std::size_t n = 1;
    for (int d : dims) n *= std::size_t(d);
    return n;
  }
  std::int64_t cols() const { return dims.back(); }
  std::int64_t pitch() const { return (cols() * element() + 15) / 16 * 16 / element(); }  // elements
  std::int64_t lines() const { return std::int64_t(count()) / cols(); }
  std::size_t bytes() const { return std::size_t(lines() * pitch()) * std::size_t(element()); }
};

struct request {
  int launches = 1, blocks = 1;
  std::vector<tensor> tensors;
} ask;

std::map<std::string, std::vector<unsigned char*>> memories;  // symmetric, by kind and name
std::vector<std::pair<std::string, std::string>> objects;     // kind and name by number
std::vector<std::unique_ptr<sm90::launch>> runs;
std::vector<std::unique_ptr<unsigned char[]>> arguments;
std::vector<std::vector<sm90::failure>> failures;

void read_request() {
  std::ifstream file("request.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "world")
      words >> m.world;
    else if (key == "launches")
      words >> ask.launches;
    else if (key == "blocks")
      words >> ask.blocks;
    else if (key == "seed")
      words >> m.seed;
    else if (key == "input" || key == "output") {
      tensor t;
      std::string type;
      words >> t.name >> type;
      t.output = key == "output";
      for (int i = 0; i < 4; ++i)
        if (type == sm90::name_of(sm90::dtype(i))) t.type = sm90::dtype(i);
      for (int d; words >> d;) t.dims.push_back(d);
      ask.tensors.push_back(t);
    }
  }
  if (m.world < 1 || m.world > max_ranks || ask.tensors.empty())
    stop("fault", "request.txt names no world or no tensors");
}

std::int32_t find_tensor(void*, const char* name, std::int32_t rank, std::int32_t output, std::int32_t,
                         sm90::tensor_info* info) {
  for (const tensor& t : ask.tensors) {
    if (t.name != name) continue;
    if (t.output != (output != 0)) {
      *info = {};
      for (std::size_t i = 0; i < t.dims.size(); ++i) info->dims[i] = t.dims[i];
      return std::int32_t(sm90::answer::other_direction);
    }
    const int rows = t.dims.size() > 1 ? t.dims[t.dims.size() - 2] : 1;
    *info = {
        t.data[std::size_t(rank)], std::int32_t(t.type), int(t.lines()) / rows, rows, int(t.cols()), t.pitch(), {}};
    for (std::size_t i = 0; i < t.dims.size(); ++i) info->dims[i] = t.dims[i];
    return std::int32_t(sm90::answer::found);
  }
  return std::int32_t(sm90::answer::unknown);
}

void* find_memory(void*, const char* kind, const char* name, std::int32_t rank, std::uint64_t bytes) {
  auto& found = memories[std::string(kind) + " " + name];
  if (found.empty()) {
    const std::string word = kind;
    const int element = word == "barrier" ? 8 : word == "scratch" ? 2 : 4;
    for (int r = 0; r < m.world; ++r) found.push_back(allocate(r, kind, name, bytes, element));
  }
  return found[std::size_t(rank)];
}

void bound(void*, std::int32_t id, const char* kind, const char* name) {
  if (objects.size() <= std::size_t(id)) objects.resize(std::size_t(id) + 1);
  objects[std::size_t(id)] = {kind, name};
}

void make_ranks() {
  m.ranks.resize(std::size_t(m.world)), m.ready.resize(std::size_t(m.world));
  for (int r = 0; r < m.world; ++r) {
    auto* host = new thread;  // for the whole run
    host->id = int(m.threads.size()), host->rank = r, host->block = -1;
    host->base = std::make_shared<knowledge>();
    m.threads.push_back(host);
    m.ranks[std::size_t(r)].host = {host->id, host->base, 1, 1, 1};
  }
  for (tensor& t : ask.tensors)
    for (int r = 0; r < m.world; ++r) {
      t.data.push_back(allocate(r, t.output ? "output" : "input", t.name, t.bytes(), t.element()));
      std::memset(t.data.back(), 0, t.bytes());
    }
}

int grid() { return ask.blocks + pk_description.comm_sms; }

void set_up() {
  for (int r = 0; r < m.world; ++r) {
    sm90::host_calls calls = {};
    calls.abi = sm90::abi_version, calls.rank = r, calls.world = m.world;
    calls.tensor = find_tensor, calls.memory = find_memory, calls.bound = bound;
    const auto bytes = std::size_t(pk_description.args_bytes) + 256;
    arguments.push_back(std::make_unique<unsigned char[]>(bytes));
    runs.push_back(std::make_unique<sm90::launch>());
    void* at = arguments.back().get();
    std::size_t room = bytes;
    std::align(128, std::size_t(pk_description.args_bytes), at, room);
    char message[512] = "";
    if (pk_setup(&calls, at, runs.back().get(), message, sizeof message) != 0) stop("refused", message);
    failures.emplace_back(std::size_t(grid()) * 4);
    runs.back()->timeout_ns = m.timeout_ns, runs.back()->failures = failures.back().data();
    int resident = 0;
    pk_prepare(&resident);
  }
}

void* arguments_of(int rank) {
  const auto at = reinterpret_cast<std::uintptr_t>(arguments[std::size_t(rank)].get());
  return reinterpret_cast<void*>((at + 127) / 128 * 128);
}

std::string file_of(const char* way, int launch, int rank, const std::string& name) {
  return std::string(way) + "." + std::to_string(launch) + "." + std::to_string(rank) + "." + name + ".bin";
}

// Row by row: rows have padding in memory and none in the file.
void transfer(const tensor& t, int rank, std::fstream&& file, bool in) {
  const auto width = std::size_t(t.cols()) * std::size_t(t.element()),
             step = std::size_t(t.pitch()) * std::size_t(t.element());
  for (std::int64_t i = 0; i < t.lines(); ++i) {
    auto* row = reinterpret_cast<char*>(t.data[std::size_t(rank)] + std::size_t(i) * step);
    if (in)
      file.read(row, std::streamsize(width));
    else
      file.write(row, std::streamsize(width));
  }
}

// What the host of a rank knows once its kernel is complete: what all threads know, and that copies are over.
void complete(rank_state& state) {
  auto all = std::make_shared<knowledge>(*state.host.base);
  all->seen.raise(std::size_t(state.host.thread), state.host.now);
  for (const auto& b : state.blocks)
    for (const auto& t : b->threads) {
      stamp_of(*t).add_to(*all, true);
      if (t->writes_component < 0) continue;
      all->seen.raise(std::size_t(t->writes_component), t->open_group),
          all->seen.raise(std::size_t(t->reads_component), t->open_group);
      t->copies.clear(), ++t->open_group;
    }
  all->global = all->seen, all->fenced = nullptr;
  state.host.base = all;
  ++state.host.now;
}

// The end of a launch of `rank` and the beginning of its next one; its host reads outputs and writes inputs
// in between, as the next operator of a program does.
bool next_launch(int rank) {
  rank_state& state = m.ranks[std::size_t(rank)];
  if (state.running) {
    complete(state);
    for (const tensor& t : ask.tensors) {
      if (!t.output) continue;
      touch_by_host(rank, *find_allocation(t.data[std::size_t(rank)]), false, "");
      transfer(t, rank, std::fstream(file_of("out", state.launch, rank, t.name), std::ios::out | std::ios::binary),
               false);
    }
    ++state.launch;
  }
  state.running = state.launch < ask.launches;
  state.done = !state.running;
  if (state.done) return false;
  for (const tensor& t : ask.tensors) {
    touch_by_host(rank, *find_allocation(t.data[std::size_t(rank)]), true, "");
    if (t.output)
      std::memset(t.data[std::size_t(rank)], 0xff, t.bytes());
    else
      transfer(t, rank, std::fstream(file_of("in", state.launch, rank, t.name), std::ios::in | std::ios::binary), true);
  }
  const auto stream = reinterpret_cast<cudaStream_t>(std::uintptr_t(rank + 1));
  if (pk_launch(stream, grid(), 1, arguments_of(rank), runs[std::size_t(rank)].get()) != 0)
    stop("refused", "the launch was refused");
  return true;
}

std::string named(int id) {
  if (id < 0 || std::size_t(id) >= objects.size()) return "the launch itself";
  return objects[std::size_t(id)].first + " '" + objects[std::size_t(id)].second + "'";
}

// What the kernel itself recorded before it stopped.
void explain_trap() {
  static const char* const kinds[] = {"nothing",   "a free slot of ring", "data in ring",   "a signal",
                                      "a barrier", "peers to enter",      "peers to leave", "a place out of range",
                                      "a mailbox"};
  static const char* const roles[] = {"loader", "consumer", "storer", "communicator", "launch"};
  for (const auto& of_rank : failures)
    for (const sm90::failure& f : of_rank) {
      if (f.kind == 0) continue;
      std::ostringstream out;
      const auto kind = sm90::failure_kind(f.kind);
      const bool range = kind == sm90::failure_kind::out_of_range;
      const bool ring = kind == sm90::failure_kind::free_slot || kind == sm90::failure_kind::data;
      out << "rank " << f.rank << " block " << f.block << " " << roles[f.role & 7]
          << (range ? " asked for " : " waited for ") << kinds[f.kind];
      if (ring)
        out << " " << f.object << ", slot " << f.slot;
      else if (range)
        out << " of " << named(f.object) << ": slot " << f.slot << ", plane or rank " << f.plane << ", row " << f.row
            << ", column " << f.col;
      else
        out << " of " << named(f.object) << ", slot " << f.slot;
      if (!range) out << ": saw " << f.seen << ", wanted " << f.wanted;
      const bool counts = !range && !ring && kind != sm90::failure_kind::mailbox;
      if (counts && f.seen > f.wanted && f.seen - f.wanted < 1u << 16)
        out << " (the count went past what is waited for: a fast rank has signalled again before this one looked; a "
               "wait "
               "must accept at least its count)";
      out << ", in launch " << f.epoch;
      m.end = {range ? "fault" : "deadlock", out.str()};
      return;
    }
}

void on_signal(int number) {
  m.end = {"fault",
           (m.running ? name_of(*m.running) : std::string("outside of every thread")) +
               (number == SIGSEGV ? ": invalid memory access or stack overflow" : ": the program was aborted")};
  report_end("report.json");
  std::_Exit(0);
}

}  // namespace

}  // namespace pk::emulated

int main() {
  using namespace pk::emulated;
  static char spare[64 << 10];
  stack_t other{};
  other.ss_sp = spare, other.ss_size = sizeof spare;
  sigaltstack(&other, nullptr);
  struct sigaction action{};
  action.sa_handler = on_signal, action.sa_flags = SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);
  try {
    read_request();
    m.random.seed(m.seed);
    m.slow = m.seed > 1 ? int(m.seed % std::uint64_t(m.world)) : -1;
    make_ranks();
    set_up();
    run_all(next_launch);
  } catch (const ended&) {
  }
  if (m.end.outcome == "trap") explain_trap();
  report_end("report.json");
  return 0;
}
