// Tensor maps as the emulator's encode writes them, and arithmetic on elements.
#pragma once

#include <cuda.h>

#include "machine.h"

namespace pk::emulated {

struct tensor_box {
  static constexpr std::uint64_t mark = 0x706b74656e736f72;
  std::uint64_t magic;
  unsigned char* data;
  std::uint64_t dims[3], strides[2];  // elements; bytes
  std::uint32_t box[2];               // elements, rows
  int element, type;                  // bytes; CUtensorMapDataType
};

unsigned char* swizzled(unsigned char* shared);  // where the 128-byte swizzle puts what belongs to `shared`
void add_elements(unsigned char* to, const unsigned char* from, int bytes, int type);

std::uint16_t to_bf16(float v);
std::uint16_t to_fp16(float v);
float from_bf16(std::uint16_t v);
float from_fp16(std::uint16_t v);

}  // namespace pk::emulated
