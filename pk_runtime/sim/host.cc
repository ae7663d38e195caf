// The host side of a launch: tensors by name, scratch, signals.
#include <cstring>
#include <fstream>

#include "world.h"

namespace pk::sim {

class host_state {
 public:
  int rank;
};

int host_rank(const host_state& h) { return h.rank; }
int host_world(const host_state&) { return w.ask.world; }

int element_bytes(dtype t) { return t == dtype::fp32 || t == dtype::i32 ? 4 : 2; }

namespace {

const char* dtype_name(dtype t) {
  static const char* names[] = {"bf16", "fp16", "fp32", "i32"};
  return names[int(t)];
}

std::int64_t padded(int cols, dtype t) {  // rows start at multiples of 16 bytes, as tensor maps need
  std::int64_t unit = 16 / element_bytes(t);
  return (cols + unit - 1) / unit * unit;
}

std::int64_t next_box = 0;

void allocate(allocation& a, int copies) {
  a.pitch = padded(a.cols, a.type);
  for (int i = 0; i < copies; ++i) {
    // Whole boxes per plane, whichever way rows are split into planes later.
    a.first_box[i] = next_box;
    std::int64_t down = std::int64_t(a.planes) * ceil_div(a.rows, 64) + max_ranks;
    next_box += down * ceil_div(a.cols * element_bytes(a.type), 128);
    if (!w.ask.timing) a.copies[i].assign(std::size_t(a.planes) * a.rows * a.pitch * element_bytes(a.type), 0xff);
  }
}

allocation& declare(int rank, const tensor_decl& d, int id) {
  allocation& a = w.ranks[rank].tensors[d.name];
  a.name = d.name, a.type = d.type, a.input = !d.output, a.id = id;
  a.cols = d.dims.empty() ? 1 : d.dims.back();
  a.rows = d.dims.size() < 2 ? 1 : d.dims[d.dims.size() - 2];
  for (std::size_t i = 0; i + 2 < d.dims.size(); ++i) a.planes *= d.dims[i];
  allocate(a, 1);
  return a;
}

tensor_ref view(allocation& a, int rank, int copy, int planes) {
  tensor_ref t;
  t.data = w.ask.timing ? nullptr : a.copies[copy].data();
  t.type = a.type, t.id = a.id * 2 + copy, t.owner = rank;
  t.planes = a.planes, t.rows = a.rows, t.cols = a.cols;
  if (planes > 0) {
    int all = a.planes * a.rows;
    if (all % planes != 0)
      report_fault(nullptr, "setup", printf_string("tensor '%s' has %d rows, which do not split into %d equal planes",
                                                   a.name.c_str(), all, planes));
    t.planes = planes, t.rows = all / planes;
  }
  t.row_stride = a.pitch;
  t.plane_stride = a.pitch * t.rows;
  t.first_box = a.first_box[copy];
  return t;
}

}  // namespace

void declare_tensors() {
  for (int r = 0; r < w.ask.world; ++r) {
    int id = 0;
    for (const tensor_decl& d : w.ask.tensors) declare(r, d, id++);
  }
}

std::int64_t box_count() { return next_box; }

allocation& allocation_of(const tensor_ref& t) {
  for (auto& [name, a] : w.ranks[t.owner].tensors)
    if (a.id == t.id / 2) return a;
  report_fault(w.running, "internal", "a layout that no tensor was bound to is used");
}

counters& counters_of(int rank, const signal_ref& s) {
  if (s.id < 0) report_fault(w.running, "setup", "a signals object is used that setup() did not declare");
  return w.ranks[rank].signals[s.id];
}

tensor_ref bind_tensor(host_state& h, const char* name, int rank, bool output, bool peers, int planes, dtype type) {
  rank_state& state = w.ranks[rank];
  auto at = state.tensors.find(name);
  if (at == state.tensors.end() || at->second.scratch) {
    std::string known;
    for (const tensor_decl& d : w.ask.tensors) known += (known.empty() ? "" : ", ") + d.name;
    report_fault(nullptr, "setup", printf_string("the problem has no tensor '%s'; it has %s", name, known.c_str()));
  }
  allocation& a = at->second;
  if (a.input == output)
    report_fault(nullptr, "setup", printf_string("tensor '%s' is an %s of the problem, not an %s", name,
                                                 a.input ? "input" : "output", output ? "output" : "input"));
  if (a.type != type)
    report_fault(nullptr, "setup", printf_string("tensor '%s' holds %s, and the kernel binds it as %s", name,
                                                 dtype_name(a.type), dtype_name(type)));
  if (peers) w.ranks[h.rank].peers_bound = true;
  a.bound = true;
  return view(a, rank, 0, planes);
}

tensor_ref bind_scratch(host_state& h, const char* name, int rank, int planes, int rows, int cols, dtype type) {
  if (planes < 1 || rows < 1 || cols < 1)
    report_fault(nullptr, "setup", printf_string("scratch '%s' has a dimension below 1: [%d, %d, %d]", name, planes, rows, cols));
  auto [at, fresh] = w.ranks[rank].tensors.try_emplace(name);
  allocation& a = at->second;
  if (fresh) {
    a.name = name, a.type = type, a.scratch = true, a.id = int(w.ranks[rank].tensors.size()) + 64;
    a.planes = planes, a.rows = rows, a.cols = cols;
    allocate(a, 2);
  } else if (!a.scratch || a.planes != planes || a.rows != rows || a.cols != cols || a.type != type) {
    report_fault(nullptr, "setup", printf_string("scratch '%s' is declared with different sizes by two ranks or launches, "
                                                 "or has the name of a tensor of the problem", name));
  }
  return view(a, rank, w.ranks[h.rank].launch % 2, 0);
}

signal_ref bind_signals(host_state& h, const char* name, int slots, int per_launch, bool is_barrier) {
  if (slots < 1 || (!is_barrier && per_launch < 1))
    report_fault(nullptr, "setup", printf_string("signals '%s' need at least one slot and one signal per launch; got %d and %d",
                                                 name, slots, per_launch));
  // Declared by every rank in the same order; whoever comes first makes them for all, because peers
  // may signal before this rank's own launch begins.
  int id = 0;
  for (auto& known : w.ranks[h.rank].signals) {
    if (known.name == name) {
      if (known.slots != slots || known.per_launch != per_launch)
        report_fault(nullptr, "setup", printf_string("signals '%s' are declared with different sizes by two ranks or launches", name));
      return {id, slots};
    }
    ++id;
  }
  for (auto& rank : w.ranks) {
    counters c;
    c.name = name, c.barrier = is_barrier, c.slots = slots, c.per_launch = per_launch;
    c.value.assign(std::size_t(2) * slots, 0);
    c.changed_at.assign(std::size_t(2) * slots, 0);
    c.from.assign(w.ask.launches, std::vector<std::uint16_t>(std::size_t(slots) * w.ask.world, 0));
    rank.signals.push_back(std::move(c));
  }
  return {id, slots};
}

void require(host_state&, bool holds, const char* message) {
  if (!holds) report_fault(nullptr, "setup", std::string("the kernel refuses these shapes: ") + message);
}

void run_setup(int rank) {
  host_state h{rank};
  rank_state& state = w.ranks[rank];
  state.args.assign(pk_program.args_bytes + 64, 0);
  pk_program.setup(h, state.args.data());
  for (const tensor_decl& d : w.ask.tensors)
    if (d.output && !state.tensors[d.name].bound)
      report_fault(nullptr, "setup", printf_string("the kernel never binds the output '%s'", d.name.c_str()));
}

namespace {
std::string file_name(const char* kind, int launch, int rank, const std::string& name) {
  return printf_string("%s.%d.%d.%s.bin", kind, launch, rank, name.c_str());
}
}  // namespace

// Inputs come in as dense files and get the padded pitch; outputs are poisoned before and written after.
void load_inputs(int rank) {
  if (w.ask.timing) return;
  for (auto& [name, a] : w.ranks[rank].tensors) {
    if (a.scratch) continue;
    if (!a.input) {
      std::memset(a.copies[0].data(), 0xff, a.copies[0].size());
      continue;
    }
    std::ifstream file(file_name("in", w.ranks[rank].launch, rank, name), std::ios::binary);
    const std::size_t row = std::size_t(a.cols) * element_bytes(a.type);
    for (int i = 0; i < a.planes * a.rows; ++i)
      file.read(reinterpret_cast<char*>(a.copies[0].data()) + i * a.pitch * element_bytes(a.type), std::streamsize(row));
    if (!file) report_fault(nullptr, "request", "input file of '" + name + "' is missing or short");
  }
}

void save_outputs(int rank) {
  if (w.ask.timing) return;
  for (auto& [name, a] : w.ranks[rank].tensors) {
    if (a.scratch || a.input) continue;
    std::ofstream file(file_name("out", w.ranks[rank].launch, rank, name), std::ios::binary);
    const std::size_t row = std::size_t(a.cols) * element_bytes(a.type);
    for (int i = 0; i < a.planes * a.rows; ++i)
      file.write(reinterpret_cast<const char*>(a.copies[0].data()) + i * a.pitch * element_bytes(a.type), std::streamsize(row));
    if (!file.flush()) report_fault(nullptr, "request", "cannot write the output file of '" + name + "'");
  }
}

}  // namespace pk::sim
