// What is found: races with both accesses and what is missing between them, and who waits for what.
#pragma once

#include "memory.h"

namespace pk::emulated {

struct past_access {
  manner how;
  site where = 0;
  std::int32_t thread = -1;  // who made it, or issued it
  std::uint8_t mask = 0;     // bytes of the word
};

struct finding {
  std::string kind, object, missing;  // kind: docs/simulator.md lists them
  struct access {
    int rank = 0, block = 0, thread = 0;
    bool host = false;
    std::string does;
    std::vector<std::uint64_t> addresses;
  } first, second;
  int launch = 0;
  std::vector<std::uint64_t> culprit;  // a third place that is named in `missing`
};
extern std::vector<finding> findings;

void report_race(const allocation& a, const unsigned char* at, const past_access& before, const past_access& now,
                 thread& t);
void report_outside(const unsigned char* at, std::size_t bytes, const manner& how, site where, thread& t);
void report_exit(thread& t, const bulk_copy& c);
void report_end(const char* path);  // writes the whole report

}  // namespace pk::emulated
