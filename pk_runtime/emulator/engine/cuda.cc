// The part of CUDA's host interface that a kernel's launcher needs, on virtual GPUs.
#include <cuda.h>

#include <cstring>

#include "bulk.h"

namespace {

int shared_bytes_allowed = 0;

}  // namespace

// What the driver refuses is refused here: CUDA's documentation of cuTensorMapEncodeTiled.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const int element = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_INT32 ? 4 : 2;
  bool fine = rank == 3 && swizzle == CU_TENSOR_MAP_SWIZZLE_128B && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  for (int i = 0; i < 3; ++i)
    fine = fine && dims[i] > 0 && dims[i] <= (cuuint64_t(1) << 32) && box[i] > 0 && box[i] <= 256 && steps[i] == 1;
  for (int i = 0; i < 2; ++i) fine = fine && strides[i] % 16 == 0 && strides[i] < (cuuint64_t(1) << 40);
  fine = fine && int(box[0]) * element <= 128 && int(box[0]) * element % 16 == 0 && box[2] == 1;
  if (!fine) return CUDA_ERROR_INVALID_VALUE;
  const pk::emulated::tensor_box made = {pk::emulated::tensor_box::mark,
                                         static_cast<unsigned char*>(data),
                                         {dims[0], dims[1], dims[2]},
                                         {strides[0], strides[1]},
                                         {box[0], box[1]},
                                         element,
                                         int(type)};
  static_assert(sizeof made <= sizeof *map);
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *found = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  shared_bytes_allowed = value;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 132;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          std::size_t shared_bytes) {
  *blocks = threads <= 1024 && shared_bytes <= std::size_t(shared_bytes_allowed) ? 1 : 0;
  return cudaSuccess;
}

// A stream is the number of its rank, plus one.
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** parameters) {
  if (int(config->dynamicSmemBytes) > shared_bytes_allowed) return cudaErrorInvalidValue;
  pk::emulated::start_launch(int(reinterpret_cast<std::uintptr_t>(config->stream)) - 1, int(config->gridDim.x),
                             int(config->blockDim.x), int(config->dynamicSmemBytes), kernel, parameters[0],
                             parameters[1]);
  return cudaSuccess;
}

namespace pk::emulated {

unsigned char* shared_memory() { return block_of(*m.running).memory; }

std::size_t shared_offset(const void* at) {
  const block& b = block_of(*m.running);
  return std::size_t(static_cast<const unsigned char*>(at) - b.memory) + shared_base;
}

}  // namespace pk::emulated
