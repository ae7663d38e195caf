// The host side of a launch: tensors by name, scratch, signals.
#include <cstring>
#include <fstream>

#include "explore.h"

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

void allocate(allocation& a, int copies) {
  a.pitch = padded(a.cols, a.type);
  if (w.ask.timing) return;
  for (int i = 0; i < copies; ++i)
    a.copies[i].assign(std::size_t(a.planes) * a.rows * a.pitch * element_bytes(a.type), 0xff);
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

[[noreturn]] void refuse_view(const allocation& a, const std::string& why) {
  report_fault(nullptr, "setup", printf_string("tensor '%s' has %s", a.name.c_str(), why.c_str()));
}

void merge_columns(const allocation& a, int cols, tensor_ref& t) {
  const std::int64_t all = std::int64_t(t.planes) * t.rows * t.cols;
  if (cols != t.cols && a.pitch != a.cols)
    refuse_view(a, printf_string("padding between its rows, so that they cannot be merged: %d columns are not a multiple "
                                 "of 16 bytes", a.cols));
  if (all % cols != 0)
    refuse_view(a, printf_string("%lld elements, which are not whole rows of %d", static_cast<long long>(all), cols));
  if (cols != t.cols && cols * element_bytes(a.type) % 16 != 0)
    refuse_view(a, printf_string("no rows of %d columns: they would not be a multiple of 16 bytes", cols));
  if (cols != t.cols) t.row_stride = cols;
  t.planes = 1, t.rows = int(all / cols), t.cols = cols;
}

void take_part(const allocation& a, const view& v, tensor_ref& t) {
  if (v.parts < 1 || v.parts > max_ranks || v.part < 0 || v.part >= v.parts)
    refuse_view(a, printf_string("no part %d of %d: parts are 1 to %d, numbered from 0", v.part, v.parts, max_ranks));
  const int size = element_bytes(a.type);
  if (v.parts > 1 && (t.cols % v.parts != 0 || t.cols / v.parts * size % 16 != 0))
    refuse_view(a, printf_string("%d columns, which do not split into %d equal parts of a multiple of 16 bytes", t.cols,
                                 v.parts));
  t.cols /= v.parts;
  if (t.data != nullptr) t.data = static_cast<unsigned char*>(t.data) + std::int64_t(v.part) * t.cols * size;
}

// Views of one tensor share no boxes: what one brought into L2 is cold for another.
std::int64_t boxes_of(allocation& a, const tensor_ref& t, int copy, int part) {
  static std::int64_t next = 0;
  auto [at, fresh] = a.first_box[copy].try_emplace({t.planes, t.rows, t.cols, part}, next);
  if (fresh) {
    const auto boxes = std::int64_t(t.planes) * ceil_div(t.rows, 64) * ceil_div(t.cols * element_bytes(t.type), 128);
    if (w.ask.warm) w.m->hold(t.owner, next, boxes);
    next += boxes;
  }
  return at->second;
}

tensor_ref seen_as(const view& v, allocation& a, int rank, int copy) {
  tensor_ref t;
  t.data = w.ask.timing ? nullptr : a.copies[copy].data();
  t.type = a.type, t.id = a.id * 2 + copy, t.owner = rank;
  t.planes = a.planes, t.rows = a.rows, t.cols = a.cols;
  t.row_stride = a.pitch;
  if (v.cols > 0) merge_columns(a, v.cols, t);
  if (v.planes > 0) {
    const int all = t.planes * t.rows;
    if (all % v.planes != 0)
      refuse_view(a, printf_string("%d rows, which do not split into %d equal planes", all, v.planes));
    t.planes = v.planes, t.rows = all / v.planes;
  }
  take_part(a, v, t);
  t.plane_stride = t.row_stride * t.rows;
  t.first_box = boxes_of(a, t, copy, v.part);
  return t;
}

}  // namespace

void declare_tensors() {
  for (int r = 0; r < w.ask.world; ++r) {
    int id = 0;
    for (const tensor_decl& d : w.ask.tensors) declare(r, d, id++);
  }
}

allocation& allocation_of(const tensor_ref& t) {
  for (auto& [name, a] : w.ranks[t.owner].tensors)
    if (a.id == t.id / 2) return a;
  report_fault(w.running, "internal", "a layout that no tensor was bound to is used");
}

counters& counters_of(int rank, const signal_ref& s) {
  if (s.id < 0) report_fault(w.running, "setup", "a signals object is used that setup() did not declare");
  return w.ranks[rank].signals[s.id];
}

box& box_of(int rank, const mailbox_ref& m) {
  if (m.id < 0) report_fault(w.running, "setup", "a mailbox is used that setup() did not declare");
  return w.ranks[rank].boxes[m.id];
}

tensor_ref bind_tensor(host_state& h, const char* name, int rank, bool output, bool peers, const view& v,
                       dtype type) {
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
  return seen_as(v, a, rank, 0);
}

int dimension(const host_state&, const char* name, int i) {
  for (const tensor_decl& d : w.ask.tensors)
    if (d.name == name && i >= 0 && i < int(d.dims.size())) return d.dims[i];
  report_fault(nullptr, "setup", printf_string("tensor '%s' has no dimension %d", name, i));
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
  return seen_as({}, a, rank, w.ranks[h.rank].launch % 2);
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
  int owner = 0;
  for (auto& rank : w.ranks) {
    counters c;
    c.name = name, c.barrier = is_barrier, c.slots = slots, c.per_launch = per_launch;
    c.rank = owner++, c.id = id;
    c.value.assign(std::size_t(2) * slots, 0);
    c.changed_at.assign(std::size_t(2) * slots, 0);
    c.went.assign(std::size_t(2) * slots, {});
    c.from.assign(w.ask.launches, std::vector<std::uint16_t>(std::size_t(slots) * w.ask.world, 0));
    rank.signals.push_back(std::move(c));
  }
  return {id, slots};
}

mailbox_ref bind_mailbox(host_state& h, const char* name, int slots, int bytes) {
  if (slots < 1) report_fault(nullptr, "setup", printf_string("mailbox '%s' needs at least one slot; got %d", name, slots));
  int id = 0;  // as with signals, the first rank to declare it makes it for all
  for (const box& known : w.ranks[h.rank].boxes) {
    if (known.name == name) {
      if (known.slots != slots || known.bytes != bytes)
        report_fault(nullptr, "setup", printf_string("mailbox '%s' is declared with different sizes by two ranks or launches", name));
      return {id, slots, bytes};
    }
    ++id;
  }
  for (auto& rank : w.ranks) {
    box b;
    b.name = name, b.slots = slots, b.bytes = bytes;
    for (auto& copy : b.letters) copy.resize(std::size_t(w.ask.world) * slots);
    rank.boxes.push_back(std::move(b));
  }
  return {id, slots, bytes};
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
    const std::string path = file_name("out", w.ranks[rank].launch, rank, name);
    std::ofstream file(path, std::ios::binary);
    std::uint64_t hash = hashed(hash_start, path.data(), path.size());
    const std::size_t row = std::size_t(a.cols) * element_bytes(a.type);
    for (int i = 0; i < a.planes * a.rows; ++i) {
      const auto* at = reinterpret_cast<const char*>(a.copies[0].data()) + i * a.pitch * element_bytes(a.type);
      file.write(at, std::streamsize(row));
      hash = hashed(hash, at, row);
    }
    note_output(hash);
    if (!file.flush()) report_fault(nullptr, "request", "cannot write the output file of '" + name + "'");
  }
}

}  // namespace pk::sim
