// What nvcc knows by itself and g++ does not: the words and built-in functions of CUDA that the headers use, for
// one thread of a virtual GPU. Included before everything else.
#pragma once

#include <pk/emulated/assembly.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

using std::max;
using std::min;

struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
// Of the thread that runs now.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace pk::emulated {

unsigned char* shared_memory();  // of this block
std::size_t shared_offset(const void* at);
void block_barrier();
void warp_barrier();
std::uint64_t exchange(std::uint64_t value, int lane);  // what that lane of this warp gives
int lane();
void fence_system();

template <class T>
T shuffled(T value, int from) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = exchange(bits, from);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace pk::emulated

inline std::size_t __cvta_generic_to_shared(const void* at) { return pk::emulated::shared_offset(at); }
inline __attribute__((always_inline)) void __syncthreads() { pk::emulated::block_barrier(); }
inline __attribute__((always_inline)) void __syncwarp(unsigned = ~0u) { pk::emulated::warp_barrier(); }
inline __attribute__((always_inline)) void __threadfence_system() { pk::emulated::fence_system(); }
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return pk::emulated::shuffled(value, from & 31);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return pk::emulated::shuffled(value, pk::emulated::lane() ^ mask);
}
inline std::uint32_t __float_as_uint(float v) { return std::bit_cast<std::uint32_t>(v); }
inline float __uint_as_float(std::uint32_t v) { return std::bit_cast<float>(v); }
inline int __float2int_rz(float v) { return int(v); }
inline float __int2float_rn(int v) { return float(v); }
