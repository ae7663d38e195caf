// y of rank r is x of the rank before it, on raw pointers.
#include <cuda_bf16.h>
#include <pk/raw.h>
using namespace pk;

struct arguments {
  raw::tensor<const __nv_bfloat16> x;  // [64, 64]
  raw::peer_tensor<__nv_bfloat16> y;   // [64, 64] of every rank
  raw::flags ready;
};

__global__ void pass_on(arguments g, raw::self self) {
  const unsigned epoch = raw::enter(self);
  const int next = (self.rank() + 1) % self.world();
  for (int i = threadIdx.x; i < g.x.rows * g.x.cols; i += blockDim.x) {
    const int row = i / g.x.cols, col = i % g.x.cols;
    g.y[next][row * g.y.pitch + col] = g.x.data[row * g.x.pitch + col];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    raw::signal_release(self, g.ready, next, 0);
    raw::wait_at_least(self, g.ready, 0, epoch + 1);
  }
  raw::close(self);
}

struct raw_ring {
  using args = arguments;
  static void setup(raw::host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.signals("ready", g.ready, 1);
  }
  static void launch(const args& g, const raw::call& at) { raw::start(at, pass_on, 1, 256, 0, g, at.self); }
};
PK_RAW(raw_ring)
