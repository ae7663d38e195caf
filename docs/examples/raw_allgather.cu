// All-gather on raw pointers: every rank pushes x into y[rank] of every rank, and flags say when it is there.
#include <cuda_bf16.h>
#include <pk/raw.h>
using namespace pk;

constexpr int threads = knob("threads", 512, {256, 512, 1024});
constexpr int wide = 8;  // elements of 16 bytes

struct arguments {
  raw::tensor<const __nv_bfloat16> x;  // [M, N]
  raw::peer_tensor<__nv_bfloat16> y;   // [W, M, N] of every rank
  raw::flags arrived;                  // [r]: blocks of rank r that have pushed all they have, over all launches
};

__global__ void __launch_bounds__(threads) push(arguments g, raw::self self) {
  const unsigned epoch = raw::enter(self);  // every rank is here: its y may be written
  const int rows = g.x.planes * g.x.rows, across = (g.x.cols + wide - 1) / wide;
  for (int i = blockIdx.x * threads + threadIdx.x; i < rows * across; i += gridDim.x * threads) {
    const int row = i / across, col = i % across * wide;
    const uint4 piece = *reinterpret_cast<const uint4*>(g.x.data + row * g.x.pitch + col);
    for (int p = 0; p < self.world(); ++p) {  // the own copy last, everybody begins with another peer
      const int peer = (self.rank() + 1 + p) % self.world();
      __nv_bfloat16* y = g.y[peer] + (self.rank() * static_cast<long long>(rows) + row) * g.y.pitch + col;
      if (col + wide <= g.x.cols) {
        *reinterpret_cast<uint4*>(y) = piece;
      } else {
        for (int j = 0; col + j < g.x.cols; ++j) y[j] = reinterpret_cast<const __nv_bfloat16*>(&piece)[j];
      }
    }
  }
  __syncthreads();  // what the whole block has pushed is covered by its signal
  if (threadIdx.x < self.world()) raw::signal_release(self, g.arrived, threadIdx.x, self.rank());
  if (blockIdx.x == 0 && threadIdx.x < self.world())
    raw::wait_at_least(self, g.arrived, threadIdx.x, (epoch + 1) * gridDim.x);
  raw::close(self);  // y is complete, and nobody reads x but this rank
}

struct raw_allgather {
  using args = arguments;
  static void setup(raw::host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.signals("arrived", g.arrived, h.world());
  }
  static void launch(const args& g, const raw::call& at) {
    raw::start(at, push, at.blocks, threads, 0, g, at.self);
  }
};
PK_RAW(raw_allgather)
