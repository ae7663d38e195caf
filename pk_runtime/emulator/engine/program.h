// PTX after decoding.
#pragma once

#include "machine.h"

namespace pk::emulated {

struct argument {
  enum { nothing, operand, number, name, special } kind = nothing;
  std::uint64_t value = 0;  // number of the operand or of the name, or the number itself
};

struct instruction;

// One execution of an asm statement by one thread.
struct execution {
  std::initializer_list<operand> operands;
  std::uint64_t* names;  // registers that the text declares
  const void* from;      // where in the program
  site where() const { return site_of(from); }

  std::uint64_t get(const argument& a) const;
  void set(const argument& a, std::uint64_t value) const;
};

struct instruction {
  std::string text;
  std::vector<std::string> words;  // of the opcode
  std::vector<argument> arguments;
  bool acquires = false, releases = false, strong = false, has_scope = false, shared = false;
  scope wide = scope::gpu;
  int elements = 1, bytes = 4;
  void (*execute)(const instruction&, const execution&) = nullptr;
  bool is(const char* word) const;
};

struct decoded {
  std::vector<instruction> instructions;
  int names = 0;
};

decoded* decode(const char* text);
void (*find_execute(const instruction& i))(const instruction&, const execution&);  // ends the run if it is not known

}  // namespace pk::emulated
