// The GEMM main loop: the only one in the tree. C[BM, BN] += A[BM, K] * B[K, BN], fp32 accumulation.
//
// A is row-major with K contiguous, B is row-major with N contiguous. Ragged edges need no care: loads
// outside a plane give zeros and stores outside it are dropped.
#pragma once

namespace pk {

template <int BM, int BN, int BK, int Stages, class T = bf16>
struct gemm {
  static constexpr int warpgroups = BM / 64;
  static constexpr int block_m = BM, block_n = BN;
  using self_group = group<warpgroups>;
  using accumulator = reg_tile<float, BM, BN, warpgroups>;
  struct stage {
    tile<T, BM, BK> a;
    tile<T, BK, BN> b;
  };
  using inputs = load_ring<stage, Stages, warpgroups>;
  using part = tile<T, BM, BK>;  // of an addend
  static constexpr int parts = BN / BK;

  // How many tiles of Out, at most `wanted`, fit beside the stages in a block's shared memory.
  template <class Out>
  static constexpr int room_for(int wanted) {
    constexpr int free = shared_memory_bytes - 1024 - Stages * ((BM + BN) * BK * int(sizeof(T)) + 16);
    static_assert(free >= Out::bytes + 16, "the stages leave no shared memory for an output tile: use fewer");
    return most(1, least(wanted, free / (Out::bytes + 16)));
  }

  // Number of K steps for operands with K columns of A.
  static PK_FN int steps(const layout<T>& a) { return ceil_div(a.cols, BK); }

  // Loader: streams the operands of output tile (plane, row) x col through the ring. `before(k)` is called
  // before step k is loaded: it may wait for data that arrives while the loop runs.
  template <class Producer>
  PK_ROLE load(Producer& in, const layout<T>& a, int plane, int row, const layout<T>& b, int col) {
    load(in, a, plane, row, b, col, [](int) {});
  }
  template <class Producer, class Before>
  PK_ROLE load(Producer& in, const layout<T>& a, int plane, int row, const layout<T>& b, int col, Before before) {
    for (int k = 0, n = steps(a); k < n; ++k) {
      before(k);
      stage& s = in.acquire();
      in.load(s.a, a, coord{plane, row, k});
      in.load(s.b, b, coord{k, col});
      in.commit();
    }
  }

  // Consumer: multiplies `n` stages. One wgmma group stays in flight while the next stage is awaited.
  template <class Consumer>
  PK_ROLE multiply(self_group self, accumulator& c, Consumer& in, int n) {
    zero(c);
    for (int k = 0; k < n; ++k) {
      stage& s = in.wait();
      mma_async(self, c, s.a, s.b);
      if (k > 0) {
        mma_wait<1>(self, c);
        in.release();
      }
    }
    mma_wait<0>(self, c);
    in.release();
  }

  // Loader: streams a tile of x, as large as an output tile, to be added to one.
  template <class Producer>
  PK_ROLE load_addend(Producer& in, const layout<T>& x, int plane, int row, int col) {
    for (int j = 0; j < parts; ++j) {
      if (col * parts + j >= x.template tiles_across<part>()) break;
      stage& s = in.acquire();
      in.load(s.a, x, coord{plane, row, col * parts + j});
      in.commit();
    }
  }

  // Consumer: adds what load_addend brings.
  template <class Consumer>
  PK_ROLE add(self_group self, accumulator& c, Consumer& in, const layout<T>& x, int col) {
    PK_UNROLL
    for (int j = 0; j < parts; ++j) {
      if (col * parts + j >= x.template tiles_across<part>()) break;
      accumulate_columns(self, c, in.wait().a, j);
      in.release();
    }
  }

  // Consumer: hands the accumulator to the storer in column chunks of the ring's tile.
  template <class Producer>
  PK_ROLE emit(self_group self, const accumulator& c, Producer& out) {
    constexpr int chunks = BN / Producer::slot::cols;
    PK_UNROLL
    for (int j = 0; j < chunks; ++j) {
      auto& t = out.acquire();
      store_columns(self, t, c, j);
      out.commit();
    }
  }
};

}  // namespace pk
