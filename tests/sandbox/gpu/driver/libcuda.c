// As much of libcuda as a runner calls, on memory of the host: device memory is a memfd, streams run at once.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { devices = 2, page = 4096, most_nodes = 8192 };

typedef struct {
  void (*run)(void*);
  void* what;
} node;
typedef struct {
  int count;
  node nodes[];
} graph;

static int failed;
static graph* captured;
static int device;
static int l2_limited, l2_forgotten;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

// For the kernels of the tests: runs now, or in every replay of the graph that is being captured.
void enqueue(void (*run)(void*), const void* what, size_t bytes) {
  void* copy = memcpy(malloc(bytes ? bytes : 1), what, bytes);
  if (captured == NULL) {
    run(copy);
    free(copy);
  } else {
    captured->nodes[captured->count++] = (node){run, copy};
  }
}
void fail(int code) { failed = code; }

#define CALL(name, ...) int name(__VA_ARGS__)

CALL(cuInit, unsigned f) { return 0; }
CALL(cuGetErrorName, int code, const char** text) {
  *text = code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
  return 0;
}
CALL(cuGetErrorString, int code, const char** text) { return cuGetErrorName(code, text); }
CALL(cuDriverGetVersion, int* version) { return *version = 13000, 0; }
CALL(cuDeviceGetCount, int* count) { return *count = devices, 0; }
CALL(cuDeviceGet, int* d, int ordinal) { return *d = ordinal, 0; }
CALL(cuDeviceGetName, char* text, int bytes, int d) { return strncpy(text, "Stand-in", bytes), 0; }
CALL(cuDeviceGetUuid_v2, char* uuid, int d) { return memset(uuid, d, 16), 0; }
CALL(cuDeviceGetAttribute, int* value, int number, int d) { return *value = number == 16 ? 132 : 9, 0; }
CALL(cuDeviceCanAccessPeer, int* able, int a, int b) { return *able = 1, 0; }
CALL(cuDevicePrimaryCtxRetain, void** context, int d) { return device = d, *context = &device, 0; }
CALL(cuCtxSetCurrent, void* context) { return 0; }
CALL(cuCtxGetDevice, int* d) { return *d = device, 0; }
CALL(cuCtxSetLimit, int limit, size_t bytes) { return l2_limited = limit == 6 && bytes == 0, 0; }
int cuCtxResetPersistingL2Cache(void) { return l2_forgotten = 1, 0; }
CALL(cuMemAlloc_v2, uint64_t* at, size_t bytes) { return *at = (uint64_t)malloc(bytes), 0; }
CALL(cuMemFree_v2, uint64_t at) { return free((void*)at), 0; }
CALL(cuMemHostAlloc, void** at, size_t bytes, unsigned flags) { return *at = calloc(1, bytes), 0; }
CALL(cuMemFreeHost, void* at) { return free(at), 0; }
CALL(cuMemcpyHtoD_v2, uint64_t to, const void* from, size_t bytes) { return memcpy((void*)to, from, bytes), 0; }
CALL(cuMemcpyDtoH_v2, void* to, uint64_t from, size_t bytes) { return memcpy(to, (void*)from, bytes), 0; }
CALL(cuMemcpyHtoDAsync_v2, uint64_t to, const void* from, size_t bytes, void* s) { return 801; }
CALL(cuMemcpyDtoHAsync_v2, void* to, uint64_t from, size_t bytes, void* s) { return 801; }
typedef struct { uint64_t to, from; size_t bytes; } copied;
static void copy_now(void* what) { copied* c = what; memcpy((void*)c->to, (void*)c->from, c->bytes); }
CALL(cuMemcpyDtoDAsync_v2, uint64_t to, uint64_t from, size_t bytes, void* s) {
  const copied c = {to, from, bytes};
  return enqueue(copy_now, &c, sizeof c), 0;
}
CALL(cuMemsetD8Async, uint64_t at, unsigned char value, size_t count, void* s) { return 801; }
typedef struct { uint64_t at; unsigned value; size_t count; } filled;
static void fill_now(void* what) {
  filled* f = what;
  for (size_t i = 0; i < f->count; ++i) ((unsigned*)f->at)[i] = f->value;
}
CALL(cuMemsetD32Async, uint64_t at, unsigned value, size_t count, void* s) {
  const filled f = {at, value, count};
  return enqueue(fill_now, &f, sizeof f), 0;
}
CALL(cuStreamCreateWithPriority, void** s, unsigned flags, int priority) { return *s = malloc(1), 0; }
CALL(cuStreamDestroy_v2, void* s) { return free(s), 0; }
CALL(cuStreamQuery, void* s) { return failed; }
CALL(cuStreamWaitEvent, void* s, void* e, unsigned flags) { return 0; }
CALL(cuStreamBeginCapture_v2, void* s, int mode) {
  captured = calloc(1, sizeof(graph) + most_nodes * sizeof(node));
  return 0;
}
CALL(cuStreamEndCapture, void* s, graph** made) { return *made = captured, captured = NULL, 0; }
CALL(cuGraphInstantiateWithFlags, graph** ready, graph* made, uint64_t flags) { return *ready = made, 0; }
CALL(cuGraphLaunch, graph* ready, void* s) {
  if (captured != NULL) return 900;
  if (!l2_limited || !l2_forgotten) return 999;  // nothing is timed with what an earlier run kept in L2
  for (int i = 0; i < ready->count; ++i) ready->nodes[i].run(ready->nodes[i].what);
  return 0;
}
CALL(cuGraphDestroy, graph* made) { return 0; }
CALL(cuGraphExecDestroy, graph* ready) { return free(ready), 0; }
CALL(cuEventCreate, double** e, unsigned flags) { return *e = calloc(1, sizeof(double)), 0; }
CALL(cuEventDestroy_v2, double* e) { return free(e), 0; }
CALL(cuEventQuery, void* e) { return failed; }
static void mark(void* what) { **(double**)what = now_ms(); }
CALL(cuEventRecordWithFlags, double* e, void* s, unsigned flags) {
  if ((captured != NULL) != (flags == 1)) return 1;  // external marks exist in graphs only
  return enqueue(mark, &e, sizeof e), 0;
}
CALL(cuEventElapsedTime, float* ms, double* start, double* end) { return *ms = (float)(*end - *start), failed; }
CALL(cuMemGetAllocationGranularity, size_t* bytes, void* p, int kind) { return *bytes = page, 0; }
CALL(cuMemCreate, uint64_t* made, size_t bytes, void* p, uint64_t flags) {
  const int file = memfd_create("device", 0);
  return *made = (uint64_t)file + 1, ftruncate(file, (off_t)bytes);
}
CALL(cuMemRelease, uint64_t handle) { return close((int)handle - 1); }
CALL(cuMemExportToShareableHandle, int* file, uint64_t handle, int kind, uint64_t flags) {
  return *file = dup((int)handle - 1), 0;
}
CALL(cuMemImportFromShareableHandle, uint64_t* made, void* file, int kind) {
  const int own = dup((int)(intptr_t)file);
  return *made = (uint64_t)own + 1, own < 0 ? 999 : 0;
}
CALL(cuMemAddressReserve, uint64_t* at, size_t bytes, size_t alignment, uint64_t fixed, uint64_t flags) {
  return *at = (uint64_t)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 0;
}
CALL(cuMemAddressFree, uint64_t at, size_t bytes) { return munmap((void*)at, bytes); }
CALL(cuMemMap, uint64_t at, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) {
  void* got = mmap((void*)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)handle - 1, 0);
  return got == MAP_FAILED ? 1 : 0;
}
CALL(cuMemUnmap, uint64_t at, size_t bytes) { return 0; }
CALL(cuMemSetAccess, uint64_t at, size_t bytes, const void* access, size_t count) { return 0; }
CALL(cuMemGetAddressRange_v2, uint64_t* base, size_t* bytes, uint64_t at) { return 801; }
CALL(cuIpcGetMemHandle, void* handle, uint64_t at) { return 801; }
typedef struct { char reserved[64]; } ipc_handle;
CALL(cuIpcOpenMemHandle_v2, uint64_t* at, ipc_handle handle, unsigned flags) { return 801; }
CALL(cuIpcCloseMemHandle, uint64_t at) { return 801; }
