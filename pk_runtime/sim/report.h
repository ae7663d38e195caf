// JSON for report.json, and what reports have in common.
#pragma once

#include <string>
#include <vector>

#include "world.h"

namespace pk::sim {

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20) out += printf_string("\\u%04x", c);
    else out += c;
  }
  return out + "\"";
}

inline std::string field(const char* name, const std::string& text) { return quoted(name) + ": " + quoted(text); }
inline std::string field(const char* name, double value) { return quoted(name) + printf_string(": %.9g", value); }

inline std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const auto& p : parts) out += (out.empty() ? "" : ", ") + p;
  return out;
}

inline std::string object(const std::vector<std::string>& fields) { return "{" + joined(fields) + "}"; }
inline std::string array(const std::vector<std::string>& items) { return "[" + joined(items) + "]"; }

std::vector<std::string> place(const fiber&);  // rank, block, role, launch, line

enum class ending { finished, raced, failed };
[[noreturn]] void write_and_exit(std::vector<std::string> fields, ending = ending::failed);

}  // namespace pk::sim
