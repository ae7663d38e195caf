// Knobs: tuning parameters declared in the kernel's source together with their legal values.
//
//   constexpr int stages = pk::knob("stages", 4, {2, 3, 4});
//
// The compiler driver passes chosen values as -DPK_KNOBS="stages=3;super_m=8". A knob that is not named
// there keeps its default. A value that is not in the list does not compile.
#pragma once

#include <initializer_list>

#ifndef PK_KNOBS
#define PK_KNOBS ""
#endif

namespace pk {
namespace detail {

// A call to this is not a constant expression, so it ends the build with its name in the message.
inline void this_value_is_not_in_the_list_of_the_knob() {}

consteval bool starts_with(const char* text, const char* name) {
  while (*name != '\0')
    if (*text++ != *name++) return false;
  return *text == '=';
}

consteval int number(const char* text) {
  bool negative = *text == '-';
  if (negative) ++text;
  int value = 0;
  while (*text >= '0' && *text <= '9') value = value * 10 + (*text++ - '0');
  return negative ? -value : value;
}

consteval int length(const char* text) {
  int n = 0;
  while (text[n] != '\0') ++n;
  return n;
}

}  // namespace detail

// The chosen value of the knob `name`, or `fallback` when none was chosen.
consteval int knob(const char* name, int fallback, std::initializer_list<int> values) {
  int value = fallback;
  for (const char* at = PK_KNOBS; *at != '\0';) {
    if (detail::starts_with(at, name)) value = detail::number(at + detail::length(name) + 1);
    while (*at != '\0' && *at != ';') ++at;
    if (*at == ';') ++at;
  }
  for (int legal : values)
    if (value == legal) return value;
  detail::this_value_is_not_in_the_list_of_the_knob();
  return value;
}

}  // namespace pk
