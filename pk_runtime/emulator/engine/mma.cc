// wgmma: executed when the 128 threads of a warpgroup have come to the instruction. It reads shared memory
// asynchronously, until the warps have waited for its group.
#include <cstring>

#include "bulk.h"
#include "memory.h"

namespace pk::emulated {

namespace {

constexpr int rows = 64, depth = 16;

struct operand_matrix {
  unsigned char* memory;  // where the block's shared window begins
  std::uint64_t descriptor;
  bool n_major;

  std::uint32_t start() const { return std::uint32_t(descriptor & 0x3fff) << 4; }
  std::uint32_t leading() const { return std::uint32_t(descriptor >> 16 & 0x3fff) << 4; }
  std::uint32_t stride() const { return std::uint32_t(descriptor >> 32 & 0x3fff) << 4; }

  // Element `outer` of M or N and `k`. An atom is 8 rows of 128 bytes.
  unsigned char* at(int outer, int k) const {
    const int strip = n_major ? outer / 64 : 0;
    const int row = n_major ? k : outer, byte = n_major ? outer % 64 * 2 : k * 2;
    const std::uint32_t address = start() + std::uint32_t(strip) * leading() + std::uint32_t(row / 8) * stride() +
                                  std::uint32_t(row % 8 * 128 + byte);
    return swizzled(memory + (address - shared_base));
  }
};

// Every warp reads the whole of B and its 16 rows of A.
void touch_pieces(const operand_matrix& a, const operand_matrix& b, int n, int warp, const manner& how, site where) {
  for (int row = warp * 16; row < warp * 16 + 16; ++row)
    for (int k = 0; k < depth; k += 8) touch(a.at(row, k), 16, how, where);
  if (b.n_major) {
    for (int k = 0; k < depth; ++k)
      for (int col = 0; col < n; col += 8) touch(b.at(col, k), 16, how, where);
  } else {
    for (int col = 0; col < n; ++col)
      for (int k = 0; k < depth; k += 8) touch(b.at(col, k), 16, how, where);
  }
}

void read(std::vector<float>& values, const operand_matrix& x, int outer, bool bf16) {
  values.resize(std::size_t(outer * depth));
  for (int o = 0; o < outer; ++o)
    for (int k = 0; k < depth; ++k) {
      std::uint16_t bits;
      std::memcpy(&bits, x.at(o, k), sizeof bits);
      values[std::size_t(k * outer + o)] = bf16 ? from_bf16(bits) : from_fp16(bits);
    }
}

void multiply(std::vector<thread*>& group, const operand_matrix& a, const operand_matrix& b, int n, bool bf16,
              bool accumulate) {
  static std::vector<float> left, right, sums;
  read(left, a, rows, bf16), read(right, b, n, bf16);
  sums.assign(std::size_t(rows * n), 0.0f);
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < depth; ++k) {
      const float v = left[std::size_t(k * rows + r)];
      float* const sum = sums.data() + r * n;
      const float* const from = right.data() + k * n;
      for (int c = 0; c < n; ++c) sum[c] += v * from[c];
    }
  for (thread* t : group) {
    const int in_group = t->index % 128, warp = in_group / 32, lane = in_group % 32;
    for (int i = 0; i < n / 2; ++i) {
      const int row = warp * 16 + lane / 4 + (i >> 1 & 1) * 8, col = i / 4 * 8 + lane % 4 * 2 + (i & 1);
      auto& c = *static_cast<float*>(t->registers[std::size_t(i)].at);
      c = (accumulate ? c : 0.0f) + sums[std::size_t(row * n + col)];
    }
  }
}

}  // namespace

void multiply_add(int n, bool bf16, bool n_major, std::initializer_list<operand> registers, std::uint64_t a,
                  std::uint64_t b, bool accumulate, site where) {
  thread& t = *m.running;
  t.registers.assign(registers.begin(), registers.begin() + n / 2);
  if (t.mma_component < 0) t.mma_component = new_component();
  unsigned char* const memory = block_of(t).memory;
  const operand_matrix left = {memory, a, false}, right = {memory, b, n_major};
  if (t.index % 32 == 0) {
    manner how;
    how.async = true, how.component = t.mma_component, how.count = t.mma_groups + 1;
    touch_pieces(left, right, n, t.index % 128 / 32, how, where);
  }
  with_warpgroup([=](std::vector<thread*>& group) { multiply(group, left, right, n, bf16, accumulate); });
}

void mma_commit() { ++m.running->mma_groups; }

// A warp's reads are noted under its first lane; every lane that waits has seen them complete.
void mma_wait(int pending) {
  thread& t = *m.running;
  const thread& first = *block_of(t).threads[std::size_t(t.index / 32 * 32)];
  if (first.mma_component >= 0 && t.mma_groups > std::uint32_t(pending))
    observe(t, first.mma_component, t.mma_groups - std::uint32_t(pending));
}

}  // namespace pk::emulated
