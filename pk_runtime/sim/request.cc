// request.txt: one directive a line, words separated by blanks.
//
//   mode functional|timing      world 4       sms 132 (or compute_sms 5, or compute_sms 5 5 5 4)      launches 3
//   resident 2 7                two blocks at a time, in an order drawn from 7
//   schedule eager|latest|random:7|pct:7:3:400 (or :0 for as long as those before)|exhaustive:first|exhaustive:12=1,31=2
//   explore listed|exhaustive 1000 10.0     all schedule lines, or every order: at most so many, for so many seconds
//   wall 5.0                    steps 200000000               trace 3                warm 1
//   input a bf16 128 64         output c bf16 32 64      parameter hbm_bytes_per_us 3.96e6
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

#include "world.h"

namespace pk::sim {

namespace {
[[noreturn]] void refuse(const std::string& what) { report_fault(nullptr, "request", what); }

dtype parse_dtype(const std::string& word) {
  if (word == "bf16") return dtype::bf16;
  if (word == "fp16") return dtype::fp16;
  if (word == "fp32") return dtype::fp32;
  if (word == "i32") return dtype::i32;
  refuse("unknown dtype '" + word + "': bf16, fp16, fp32 and i32 are known");
}

std::uint64_t number(std::string_view text) {
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) refuse("'" + std::string(text) + "' is not a number");
  return n;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t end; (end = text.find(at)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

plan read_plan(const std::string& text) {
  const auto parts = split(text, ':');
  plan p;
  p.strategy = parts[0];
  const std::size_t expected = p.strategy == "pct" ? 4 : p.strategy == "random" || p.strategy == "exhaustive" ? 2 : 1;
  if (parts.size() != expected) refuse("malformed schedule '" + text + "'");
  if (p.strategy == "exhaustive" && parts[1] != "first") {
    for (std::string_view choice : split(parts[1], ',')) {
      const auto sides = split(choice, '=');
      if (sides.size() != 2) refuse("malformed choice in the schedule '" + text + "'");
      p.choices.emplace_back(number(sides[0]), number(sides[1]));
    }
  } else if (expected > 1 && p.strategy != "exhaustive") {
    p.seed = number(parts[1]);
  }
  if (p.strategy == "pct") p.depth = int(number(parts[2])), p.horizon = number(parts[3]);
  return p;
}

void read_exploration(std::istream& words, request& r) {
  std::string what;
  r.explore = bool(words >> what >> r.most_schedules >> r.exploration_wall);
  r.exhaustive = what == "exhaustive";
}

}  // namespace

int request::sms_of(int rank) const {
  return compute_sms.size() > 1 ? compute_sms[std::size_t(rank)] + pk_program.comm_sms : sms;
}

std::string plan::text() const {
  if (strategy == "random") return printf_string("random:%llu", static_cast<unsigned long long>(seed));
  if (strategy == "pct")
    return printf_string("pct:%llu:%d:%llu", static_cast<unsigned long long>(seed), depth,
                         static_cast<unsigned long long>(horizon));
  return strategy;
}

double request::parameter(const char* name) const {
  auto at = parameters.find(name);
  if (at == parameters.end()) refuse(std::string("the hardware sheet lacks '") + name + "'");
  return at->second;
}

request read_request(const char* path) {
  std::ifstream file(path);
  if (!file) refuse(std::string("cannot read ") + path);
  request r;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    if (!(words >> key)) continue;
    if (key == "mode") {
      std::string mode;
      words >> mode;
      r.timing = mode == "timing";
    } else if (key == "world") words >> r.world;
    else if (key == "warm") words >> r.warm;
    else if (key == "sms") words >> r.sms;
    else if (key == "compute_sms") {
      for (int n; words >> n;) r.compute_sms.push_back(n);
      continue;
    } else if (key == "resident") words >> r.resident >> r.placement;
    else if (key == "launches") words >> r.launches;
    else if (std::string text; key == "schedule") {
      words >> text;
      r.schedules.push_back(r.schedule = read_plan(text));
    } else if (key == "explore") read_exploration(words, r);
    else if (key == "wall") words >> r.wall_seconds;
    else if (key == "steps") words >> r.max_steps;
    else if (key == "trace") words >> r.trace_blocks;
    else if (key == "parameter") {
      std::string name;
      double value = 0;
      words >> name >> value;
      r.parameters[name] = value;
    } else if (key == "input" || key == "output") {
      tensor_decl t;
      std::string type;
      words >> t.name >> type;
      t.type = parse_dtype(type);
      t.output = key == "output";
      for (int d; words >> d;) t.dims.push_back(d);
      r.tensors.push_back(t);
      continue;
    } else refuse("unknown directive '" + key + "'");
    if (words.fail()) refuse("malformed line '" + line + "'");
  }
  if (r.world < 1 || r.world > max_ranks) refuse(printf_string("world size %d is not in 1..%d", r.world, max_ranks));
  if (r.compute_sms.size() > 1 && int(r.compute_sms.size()) != r.world) refuse("compute_sms needs one number, or one a rank");
  if (!r.compute_sms.empty()) r.sms = r.compute_sms[0] + pk_program.comm_sms;
  for (int rank = 0; rank < r.world; ++rank)
    if (r.sms_of(rank) < 1 || r.sms_of(rank) >= 1 << 12) refuse("sms, or compute_sms, must be 1 to 4095");
  return r;
}

}  // namespace pk::sim
