// Inline PTX as the emulator sees it. Before g++ compiles a source, `translate.py` writes every
// `asm volatile("text" : outputs : inputs)` as `({ static program p{"text"}; p.run({operands}); })`: the text
// itself is what is executed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace pk::emulated {

// A register of the instruction: where it is, or what is in it.
struct operand {
  void* at = nullptr;
  std::uint64_t value = 0;
  int bytes = 0;
};

template <class T>
operand written(char, T& to) {
  return {&to, 0, int(sizeof(T))};
}
template <class T>
operand changed(char, T& what) {
  return {&what, 0, int(sizeof(T))};
}
template <class T>
operand given(char kind, T from) {
  operand o;
  o.bytes = kind == 'l' ? 8 : kind == 'h' ? 2 : 4;
  if constexpr (std::is_pointer_v<T>) {
    o.value = reinterpret_cast<std::uint64_t>(from);
  } else {
    __builtin_memcpy(&o.value, &from, sizeof(T));
  }
  return o;
}

struct decoded;

// The text of one asm statement, decoded when it is first executed.
class program {
 public:
  constexpr explicit program(const char* text) : text_(text) {}
  void run(std::initializer_list<operand> operands);

 private:
  const char* text_;
  decoded* code_ = nullptr;
};

}  // namespace pk::emulated
