// Element types of the Hopper half: 16-bit storage, arithmetic in fp32.
#pragma once

#include <bit>
#include <cstdint>

#include <pk/sm90/ptx.h>

namespace pk {

// bfloat16: the upper half of an fp32, rounded to nearest even.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  __device__ __forceinline__ bf16(float value) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  __device__ __forceinline__ operator float() const { return __uint_as_float(std::uint32_t(bits) << 16); }
};

// IEEE half precision.
struct fp16 {
  std::uint16_t bits = 0;
  fp16() = default;
  __device__ __forceinline__ fp16(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  __device__ __forceinline__ operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};

namespace sm90 {

// Numbers are part of the interface with the launcher.
enum class dtype : int { bf16, fp16, fp32, i32 };

template <class T> inline constexpr dtype dtype_of = dtype::i32;
template <> inline constexpr dtype dtype_of<bf16> = dtype::bf16;
template <> inline constexpr dtype dtype_of<fp16> = dtype::fp16;
template <> inline constexpr dtype dtype_of<float> = dtype::fp32;

// Two neighbours of a row in one register, the left one in the lower half.
template <class T> PK_DEVICE std::uint32_t pack(float left, float right);
template <> PK_DEVICE std::uint32_t pack<bf16>(float left, float right) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(right), "f"(left));
  return pair;
}
template <> PK_DEVICE std::uint32_t pack<fp16>(float left, float right) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(right), "f"(left));
  return pair;
}

template <class T> PK_DEVICE float left_of(std::uint32_t pair);
template <class T> PK_DEVICE float right_of(std::uint32_t pair);
template <> PK_DEVICE float left_of<bf16>(std::uint32_t pair) { return __uint_as_float(pair << 16); }
template <> PK_DEVICE float right_of<bf16>(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
template <> PK_DEVICE float left_of<fp16>(std::uint32_t pair) {
  float value;
  asm("{\n .reg .b16 l, r;\n mov.b32 {l, r}, %1;\n cvt.f32.f16 %0, l;\n}\n" : "=f"(value) : "r"(pair));
  return value;
}
template <> PK_DEVICE float right_of<fp16>(std::uint32_t pair) {
  float value;
  asm("{\n .reg .b16 l, r;\n mov.b32 {l, r}, %1;\n cvt.f32.f16 %0, r;\n}\n" : "=f"(value) : "r"(pair));
  return value;
}

// A 32-bit element in a register.
template <class T> PK_DEVICE std::uint32_t bits_of(float value);
template <> PK_DEVICE std::uint32_t bits_of<float>(float value) { return __float_as_uint(value); }
template <> PK_DEVICE std::uint32_t bits_of<int>(float value) { return std::uint32_t(__float2int_rz(value)); }
template <class T> PK_DEVICE float value_of(std::uint32_t bits);
template <> PK_DEVICE float value_of<float>(std::uint32_t bits) { return __uint_as_float(bits); }
template <> PK_DEVICE float value_of<int>(std::uint32_t bits) { return __int2float_rn(int(bits)); }

}  // namespace sm90
}  // namespace pk
