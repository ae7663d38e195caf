// JSON as text, for what goes into report.json, and what reports have in common.
#pragma once

#include <string>
#include <vector>

namespace pk::sim {

struct fiber;

std::string quoted(const std::string& text);
std::string field(const char* name, const std::string& text);
std::string field(const char* name, double value);
std::string object(const std::vector<std::string>& fields);
std::string array(const std::vector<std::string>& items);

std::vector<std::string> place(const fiber&);  // rank, block, role, launch, line

enum class ending { finished, raced, failed };
[[noreturn]] void write_and_exit(std::vector<std::string> fields, ending how = ending::failed);

}  // namespace pk::sim
