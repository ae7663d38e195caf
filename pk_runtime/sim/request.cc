// request.txt: one directive a line, words separated by blanks.
//
//   mode functional|timing      world 4       sms 132 (or compute_sms 5)      launches 3     seed 7
//   wall 5.0                    steps 200000000            resident 1
//   input a bf16 128 64         output c bf16 32 64      parameter hbm_bytes_per_us 3.96e6
#include <cstdlib>
#include <fstream>
#include <sstream>

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
}  // namespace

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
    else if (key == "resident") words >> r.resident;
    else if (key == "sms") words >> r.sms;
    else if (key == "compute_sms") words >> r.compute_sms;
    else if (key == "launches") words >> r.launches;
    else if (key == "seed") words >> r.seed;
    else if (key == "wall") words >> r.wall_seconds;
    else if (key == "steps") words >> r.max_steps;
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
  if (r.compute_sms > 0) r.sms = r.compute_sms + pk_program.comm_sms;
  if (r.sms < 1) refuse("neither sms nor compute_sms is given");
  return r;
}

}  // namespace pk::sim
