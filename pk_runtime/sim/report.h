// JSON as text, for what goes into report.json.
#pragma once

#include <string>
#include <vector>

namespace pk::sim {

std::string quoted(const std::string& text);
std::string field(const char* name, const std::string& text);
std::string field(const char* name, double value);
std::string object(const std::vector<std::string>& fields);
std::string array(const std::vector<std::string>& items);

}  // namespace pk::sim
