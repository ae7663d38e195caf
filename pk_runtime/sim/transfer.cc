// Tiles between shared and global memory: range checks, ragged edges, element formats.
#include <bit>
#include <cmath>
#include <cstring>

#include "world.h"

namespace pk::sim {

void check_range(const fiber& f, const char* what, const tensor_ref& t, coord at, int rows, int cols) {
  const int down = ceil_div(t.rows, rows), across = ceil_div(t.cols, cols);
  if (at.plane >= 0 && at.plane < t.planes && at.row >= 0 && at.row < down && at.col >= 0 && at.col < across) return;
  const allocation& a = allocation_of(t);
  report_fault(&f, "out_of_range",
               printf_string("%s: %s of '%s' of rank %d at tile {plane %d, row %d, col %d}; in tiles of %d x %d the "
                             "tensor [%d, %d, %d] has planes 0..%d, rows 0..%d, cols 0..%d",
                             describe(f).c_str(), what, a.name.c_str(), t.owner, at.plane, at.row, at.col, rows, cols,
                             t.planes, t.rows, t.cols, t.planes - 1, down - 1, across - 1));
}

float to_float(dtype type, const void* element) {
  if (type == dtype::fp32) return *static_cast<const float*>(element);
  if (type == dtype::i32) return float(*static_cast<const std::int32_t*>(element));
  const auto bits = *static_cast<const std::uint16_t*>(element);
  if (type == dtype::bf16) return std::bit_cast<float>(std::uint32_t(bits) << 16);
  return float(std::bit_cast<_Float16>(bits));
}

void from_float(dtype type, void* element, float value) {
  if (type == dtype::fp32) {
    *static_cast<float*>(element) = value;
  } else if (type == dtype::i32) {
    *static_cast<std::int32_t*>(element) = std::int32_t(value);
  } else if (type == dtype::fp16) {
    *static_cast<std::uint16_t*>(element) = std::bit_cast<std::uint16_t>(_Float16(value));
  } else {
    auto bits = std::bit_cast<std::uint32_t>(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *static_cast<std::uint16_t*>(element) = std::uint16_t(bits);
  }
}

void to_float(float* out, const tile_ref& in) {
  const int size = element_bytes(in.type), n = in.rows * in.cols;
  const auto* at = static_cast<const unsigned char*>(in.data);
  for (int i = 0; i < n; ++i) out[i] = to_float(in.type, at + std::size_t(i) * size);
}

void from_float(const tile_ref& out, const float* in, int in_cols, int first_col) {
  const int size = element_bytes(out.type);
  auto* at = static_cast<unsigned char*>(out.data);
  for (int r = 0; r < out.rows; ++r)
    for (int c = 0; c < out.cols; ++c)
      from_float(out.type, at + (std::size_t(r) * out.cols + c) * size, in[std::size_t(r) * in_cols + first_col + c]);
}

// Elements outside the plane read as zero.
void copy_in(const tile_ref& tile, const tensor_ref& src, coord at) {
  const int size = element_bytes(src.type), width = min(tile.cols, src.cols - at.col * tile.cols);
  auto* to = static_cast<unsigned char*>(tile.data);
  const auto* from = static_cast<const unsigned char*>(src.data);
  for (int r = 0; r < tile.rows; ++r, to += std::size_t(tile.cols) * size) {
    const int row = at.row * tile.rows + r;
    const int valid = row < src.rows ? width : 0;
    std::memcpy(to, from + (at.plane * src.plane_stride + std::int64_t(row) * src.row_stride + at.col * tile.cols) * size,
                std::size_t(valid) * size);
    std::memset(to + std::size_t(valid) * size, 0, std::size_t(tile.cols - valid) * size);
  }
}

// Elements outside the plane are dropped. An addition rounds to the tensor's type.
void copy_out(const tensor_ref& dst, coord at, const tile_ref& tile, const void* elements, bool add) {
  const int size = element_bytes(dst.type), width = min(tile.cols, dst.cols - at.col * tile.cols);
  const auto* from = static_cast<const unsigned char*>(elements);
  auto* base = static_cast<unsigned char*>(dst.data);
  for (int r = 0; r < tile.rows && at.row * tile.rows + r < dst.rows; ++r, from += std::size_t(tile.cols) * size) {
    auto* to = base + (at.plane * dst.plane_stride + std::int64_t(at.row * tile.rows + r) * dst.row_stride +
                       at.col * tile.cols) * size;
    if (!add) {
      std::memcpy(to, from, std::size_t(width) * size);
      continue;
    }
    for (int c = 0; c < width; ++c)
      from_float(dst.type, to + c * size, to_float(dst.type, to + c * size) + to_float(tile.type, from + c * size));
  }
}

}  // namespace pk::sim
