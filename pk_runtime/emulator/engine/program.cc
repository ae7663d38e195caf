// Decodes the text of an asm statement: instructions, their modifiers, and what their operands are.
#include "program.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

namespace pk::emulated {

namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (char c : text)
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \n\t"), last = text.find_last_not_of(" \n\t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

argument argument_of(std::string word, std::map<std::string, int>& names) {
  argument a;
  if (word == "_") return a;
  if (word.starts_with("%%")) {
    a.kind = argument::special;
  } else if (word[0] == '%') {
    a.kind = argument::operand, a.value = std::uint64_t(std::atoi(word.c_str() + 1));
  } else if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
    a.kind = argument::number, a.value = std::strtoull(word.c_str(), nullptr, 0);
  } else {
    a.kind = argument::name, a.value = std::uint64_t(names.emplace(word, int(names.size())).first->second);
  }
  return a;
}

instruction instruction_of(const std::string& text, std::map<std::string, int>& names) {
  instruction i;
  i.text = text;
  const auto blank = text.find_first_of(" \t");
  i.words = split(text.substr(0, blank), '.');
  std::string rest = blank == std::string::npos ? "" : text.substr(blank);
  for (char& c : rest)
    if (std::strchr("[]{}", c) != nullptr) c = ' ';
  for (const std::string& part : split(rest, ','))
    if (const std::string word = trimmed(part); !word.empty()) i.arguments.push_back(argument_of(word, names));
  for (const std::string& word : i.words) {
    if (word == "acquire" || word == "acq_rel") i.acquires = true;
    if (word == "release" || word == "acq_rel") i.releases = true;
    if (word == "relaxed" || word == "volatile") i.strong = true;
    if (word == "cta") i.wide = scope::cta, i.has_scope = true;
    if (word == "cluster") i.wide = scope::cluster, i.has_scope = true;
    if (word == "gpu") i.wide = scope::gpu, i.has_scope = true;
    if (word == "sys") i.wide = scope::sys, i.has_scope = true;
    if (word.starts_with("shared")) i.shared = true;
    if (word == "v2") i.elements = 2;
    if (word == "v4") i.elements = 4;
    if (word.size() == 3 && std::strchr("ubsf", word[0]) != nullptr &&
        std::isdigit(static_cast<unsigned char>(word[1])) != 0)
      i.bytes = std::atoi(word.c_str() + 1) / 8;
  }
  i.strong |= i.acquires || i.releases;
  if (i.is("volatile")) i.wide = scope::sys;  // and relaxed
  return i;
}

}  // namespace

bool instruction::is(const char* word) const {
  for (const std::string& w : words)
    if (w == word) return true;
  return false;
}

decoded* decode(const char* text) {
  auto* code = new decoded;
  std::map<std::string, int> names;
  for (std::string part : split(text, ';')) {
    part = trimmed(part);
    while (!part.empty() && (part[0] == '{' || part[0] == '}')) part = trimmed(part.substr(1));
    if (part.empty() || part.starts_with(".reg")) continue;
    instruction i = instruction_of(part, names);
    i.execute = find_execute(i);
    code->instructions.push_back(std::move(i));
  }
  code->names = int(names.size());
  return code;
}

}  // namespace pk::emulated
