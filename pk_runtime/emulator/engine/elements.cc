// Conversions between fp32 and the 16-bit types, to nearest even, and the additions of bulk copies.
#include <bit>
#include <cmath>
#include <cstring>

#include "bulk.h"

namespace pk::emulated {

std::uint16_t to_bf16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  if (std::isnan(v)) return 0x7fff;
  return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(std::uint16_t v) { return std::bit_cast<float>(std::uint32_t(v) << 16); }

std::uint16_t to_fp16(float v) {
  const auto sign = std::uint16_t(std::signbit(v) ? 0x8000 : 0);
  if (std::isnan(v)) return 0x7fff;
  const float size = std::fabs(v);
  if (size >= 65520.0f) return std::uint16_t(sign | 0x7c00);
  int exponent = size == 0 ? -14 : std::max(std::ilogb(size), -14);
  const auto units = std::uint32_t(std::nearbyint(std::ldexp(size, 10 - exponent)));  // of the last place
  return std::uint16_t(sign + (units < 1024 ? units : std::uint32_t(exponent + 14) * 1024 + units));
}

float from_fp16(std::uint16_t v) {
  const int exponent = v >> 10 & 31, digits = v & 1023;
  const float sign = (v & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return digits != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(float(digits), -24) : std::ldexp(float(1024 + digits), exponent - 25));
}

namespace {

template <class T, class F>
void add_each(unsigned char* to, const unsigned char* from, int bytes, F sum) {
  for (int i = 0; i < bytes; i += int(sizeof(T))) {
    T a, b;
    std::memcpy(&a, to + i, sizeof a), std::memcpy(&b, from + i, sizeof b);
    a = sum(a, b);
    std::memcpy(to + i, &a, sizeof a);
  }
}

}  // namespace

void add_elements(unsigned char* to, const unsigned char* from, int bytes, int type) {
  using u16 = std::uint16_t;
  switch (CUtensorMapDataType(type)) {
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return add_each<u16>(to, from, bytes, [](u16 a, u16 b) { return to_bf16(from_bf16(a) + from_bf16(b)); });
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return add_each<u16>(to, from, bytes, [](u16 a, u16 b) { return to_fp16(from_fp16(a) + from_fp16(b)); });
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return add_each<float>(to, from, bytes, [](float a, float b) { return a + b; });
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
      return add_each<std::uint32_t>(to, from, bytes, [](std::uint32_t a, std::uint32_t b) { return a + b; });
  }
}

}  // namespace pk::emulated
