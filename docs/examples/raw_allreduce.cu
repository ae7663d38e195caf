// One-shot all-reduce on raw pointers: every rank reads x of every rank and adds in rank order, in fp32.
#include <cuda_bf16.h>
#include <pk/raw.h>
using namespace pk;

constexpr int threads = 512;
constexpr int wide = 8;  // elements of 16 bytes

struct arguments {
  raw::peer_tensor<const __nv_bfloat16> x;  // [M, N] of every rank
  raw::tensor<__nv_bfloat16> y;             // [M, N] of this rank
};

__global__ void __launch_bounds__(threads) add_all(arguments g, raw::self self) {
  raw::enter(self);  // every rank is here: its x may be read
  const int across = (g.y.cols + wide - 1) / wide, pieces = g.y.planes * g.y.rows * across;
  for (int i = blockIdx.x * threads + threadIdx.x; i < pieces; i += gridDim.x * threads) {
    const long long at = i / across * g.y.pitch + i % across * wide;
    float sum[wide] = {};
    for (int r = 0; r < self.world(); ++r) {
      const uint4 piece = *reinterpret_cast<const uint4*>(g.x[r] + at);
      const __nv_bfloat16* x = reinterpret_cast<const __nv_bfloat16*>(&piece);
      for (int j = 0; j < wide; ++j) sum[j] += __bfloat162float(x[j]);
    }
    const int inside = min(wide, g.y.cols - i % across * wide);
    for (int j = 0; j < inside; ++j) g.y.data[at + j] = __float2bfloat16_rn(sum[j]);
  }
  raw::leave(self);  // every rank is done: x may change
}

struct raw_allreduce {
  using args = arguments;
  static void setup(raw::host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.require(g.x.pitch == g.y.pitch, "x and y must have rows of the same pitch");
  }
  static void launch(const args& g, const raw::call& at) {
    raw::start(at, add_all, at.blocks, threads, 0, g, at.self);
  }
};
PK_RAW(raw_allreduce)
