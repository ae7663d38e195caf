// A driver's library without a GPU, for the tests of the GPU check: the calls that gpu_probe makes,
// with the signatures of cuda.h, on host memory. Memory that can be shared is a memfd. Two nodes that
// every machine has stand for two GPUs: it counts those that the caller may read and write.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY (2u << 20)

enum { success = 0, invalid_value = 1, not_initialized = 3, no_device = 100, invalid_device = 101 };

struct location { int type, id; };
struct properties {
  int type, handle_types;
  struct location where;
  void* windows;
  unsigned char flags[8];
};
struct access { struct location where; int flags; };

static int devices;

int cuInit(unsigned flags) {
  devices = !access("/dev/tty", R_OK | W_OK) + !access("/dev/ptmx", R_OK | W_OK);
  return flags == 0 && devices ? success : no_device;
}
int cuDriverGetVersion(int* version) { *version = 13000; return success; }
int cuGetErrorName(int code, const char** name) {
  *name = code == no_device ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_INVALID_VALUE";
  return success;
}
int cuDeviceGetCount(int* count) { *count = devices; return devices ? success : not_initialized; }
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < devices ? success : invalid_device;
}
int cuDeviceGetName(char* name, int size, int device) {
  strncpy(name, device == 0 ? "first fake" : "second fake", (size_t)size);
  return success;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &devices;
  return device < devices ? success : invalid_device;
}
int cuCtxSetCurrent(void* context) { return context == &devices ? success : invalid_value; }
int cuCtxSynchronize(void) { return success; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  *address = (uint64_t)(uintptr_t)malloc(bytes);
  return success;
}
int cuMemFree_v2(uint64_t address) { free((void*)(uintptr_t)address); return success; }
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t count) {
  memset((void*)(uintptr_t)address, value, count);
  return success;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t count) {
  memcpy(to, (void*)(uintptr_t)from, count);
  return success;
}
static int good(const struct properties* p) {
  const struct properties zeros = {0};
  return p->type == 1 && p->handle_types == 1 && p->where.type == 1 && p->where.id >= 0 &&
         p->where.id < devices && p->windows == NULL && !memcmp(p->flags, zeros.flags, 8);
}
int cuMemGetAllocationGranularity(size_t* bytes, const struct properties* p, int option) {
  *bytes = GRANULARITY;
  return good(p) && option == 0 ? success : invalid_value;
}
int cuMemCreate(uint64_t* handle, size_t bytes, const struct properties* p, uint64_t flags) {
  if (!good(p) || bytes % GRANULARITY || flags) return invalid_value;
  int file = memfd_create("fake", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)bytes)) return invalid_value;
  *handle = (uint64_t)file;
  return success;
}
int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t alignment, uint64_t hint,
                        uint64_t flags) {
  void* found = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *address = (uint64_t)(uintptr_t)found;
  return found != MAP_FAILED && !alignment && !hint && !flags ? success : invalid_value;
}
int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) {
  void* found = mmap((void*)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                     (int)handle, (off_t)offset);
  return found != MAP_FAILED && flags == 0 ? success : invalid_value;
}
int cuMemSetAccess(uint64_t address, size_t bytes, const struct access* a, size_t count) {
  if (count != 1 || a->where.type != 1 || a->where.id >= devices || a->flags != 3)
    return invalid_value;
  return mprotect((void*)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE) ? invalid_value
                                                                           : success;
}
int cuMemExportToShareableHandle(void* out, uint64_t handle, int type, uint64_t flags) {
  *(int*)out = fcntl((int)handle, F_DUPFD_CLOEXEC, 0);
  return type == 1 && flags == 0 && *(int*)out >= 0 ? success : invalid_value;
}
int cuMemImportFromShareableHandle(uint64_t* handle, void* descriptor, int type) {
  int file = fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC, 0);
  *handle = (uint64_t)file;
  return type == 1 && file >= 0 ? success : invalid_value;
}
