// The matrix product of tiles, the one arithmetic that is worth vectorizing here.
#include <cmath>
#include <vector>

#include "world.h"

namespace pk::sim {

namespace {

__attribute__((target_clones("avx512f", "avx2", "default")))
void axpy(float* __restrict c, const float* __restrict b, float a, int n) {
  for (int i = 0; i < n; ++i) c[i] += a * b[i];
}

__attribute__((target_clones("avx512f", "avx2", "default")))
void widen(float* __restrict out, const std::uint16_t* __restrict in, int n) {
  auto* bits = reinterpret_cast<std::uint32_t*>(out);
  for (int i = 0; i < n; ++i) bits[i] = std::uint32_t(in[i]) << 16;
}

void floats(std::vector<float>& out, const tile_ref& t) {
  out.resize(std::size_t(t.rows) * t.cols);
  if (t.type == dtype::bf16) widen(out.data(), static_cast<const std::uint16_t*>(t.data), t.rows * t.cols);
  else to_float(out.data(), t);
}

}  // namespace

// c[M, N] += a[M, K] * b[K, N] (or b[N, K]^T), fp32. A zero in `a` lets the row of `b` be skipped unless
// that row holds something that zero does not annihilate.
void mma(float* c, const tile_ref& a, const tile_ref& b, bool b_transposed) {
  static std::vector<float> fa, fb, ft;
  floats(fa, a);
  floats(fb, b);
  const int m = a.rows, k = a.cols, n = b_transposed ? b.rows : b.cols;
  if (b_transposed) {
    ft.resize(fb.size());
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < k; ++j) ft[std::size_t(j) * n + i] = fb[std::size_t(i) * k + j];
    fb.swap(ft);
  }
  std::vector<char> finite(static_cast<std::size_t>(k), 1);
  for (int j = 0; j < k; ++j)
    for (int i = 0; i < n; ++i)
      if (!std::isfinite(fb[std::size_t(j) * n + i])) finite[std::size_t(j)] = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < k; ++j) {
      const float v = fa[std::size_t(i) * k + j];
      if (v != 0.0f || !finite[std::size_t(j)]) axpy(c + std::size_t(i) * n, fb.data() + std::size_t(j) * n, v, n);
    }
}

}  // namespace pk::sim
