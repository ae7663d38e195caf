// Element types of the simulator half.
#pragma once

#include <bit>
#include <cstdint>

#include <pk/sim/engine.h>

namespace pk {

// bfloat16: the upper half of an fp32, rounded to nearest even.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  bf16(float value) { sim::from_float(sim::dtype::bf16, this, value); }
  operator float() const { return std::bit_cast<float>(std::uint32_t(bits) << 16); }
};

// IEEE half precision.
struct fp16 {
  std::uint16_t bits = 0;
  fp16() = default;
  fp16(float value) { sim::from_float(sim::dtype::fp16, this, value); }
  operator float() const { return sim::to_float(sim::dtype::fp16, this); }
};

namespace sim {
template <class T> inline constexpr dtype dtype_of = dtype::i32;
template <> inline constexpr dtype dtype_of<bf16> = dtype::bf16;
template <> inline constexpr dtype dtype_of<fp16> = dtype::fp16;
template <> inline constexpr dtype dtype_of<float> = dtype::fp32;
}  // namespace sim

}  // namespace pk
