// A "built kernel": all-to-all through the C interface of pk_runtime/gpu/abi.py, on the stand-in driver.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { most_ranks = 8, most_dims = 8, element = 2 };

void enqueue(void (*run)(void*), const void* what, size_t bytes);
void fail(int code);

typedef struct {
  int32_t abi, args_bytes, launch_bytes, control_bytes, failure_bytes, shared_bytes, threads, comm_sms, max_world, roles;
  const char* name;
} description;
typedef struct {
  void* data;
  int32_t type, planes, rows, cols;
  int64_t pitch;
  int32_t dims[most_dims];
} tensor_info;
typedef struct {
  int32_t abi, rank, world, plan;
  void* context;
  int32_t (*tensor)(void*, const char*, int32_t, int32_t, int32_t, tensor_info*);
  void* (*memory)(void*, const char*, const char*, int32_t, uint64_t);
  void (*bound)(void*, int32_t, const char*, const char*);
  void* encode;
} host_calls;
typedef struct {
  int32_t kind, rank, block, role, object, slot, plane, row, col, epoch;
  uint64_t seen, wanted, waited_ns;
} failure;
typedef struct {
  int32_t rank, world, peers_bound, symmetric;
  uint64_t timeout_ns;
  failure* failures;
  uint32_t* controls[most_ranks];
} launch;
typedef struct {
  tensor_info x, y[most_ranks];
} arguments;
typedef struct {
  arguments g;
  launch l;
} call;

const description pk_description = {
    ABI, sizeof(arguments), sizeof(launch), 64, sizeof(failure), 0, 128, 0, most_ranks, 1, "exchange"};

int pk_setup(const host_calls* calls, void* at, launch* run, char* message, int bytes) {
  arguments* g = at;
  memset(run, 0, sizeof *run);
  run->rank = calls->rank, run->world = calls->world;
  for (int r = 0; r < calls->world; ++r) {
    run->controls[r] = calls->memory(calls->context, "control", "", r, 64);
    const int found = calls->tensor(calls->context, "y", r, 1, 1, &g->y[r]);
    if (found != 0) return snprintf(message, bytes, "the problem has no tensor 'y'"), 1;
  }
  calls->bound(calls->context, 0, "signals", "ready");
  if (calls->tensor(calls->context, "x", calls->rank, 0, 0, &g->x) != 0)
    return snprintf(message, bytes, "the problem has no tensor 'x'"), 1;
  if (g->x.planes != calls->world || g->x.dims[0] != calls->world || g->x.dims[3] != 0) return snprintf(message, bytes, "x must be [W, M, N]"), 1;
  return 0;
}

int pk_prepare(int* resident) { return *resident = 132, 0; }

// All ranks count up counter `at` of their own and see the others there; for a while, for peers may have failed.
static void meet(const launch* l, int at) {
  const uint32_t mine = __atomic_add_fetch(&l->controls[l->rank][at], 1, __ATOMIC_SEQ_CST);
  for (int r = 0; r < l->world; ++r)
    for (int n = 0; n < 20000 && __atomic_load_n(&l->controls[r][at], __ATOMIC_SEQ_CST) < mine; ++n) usleep(10);
}

static void exchange(void* what) {
  const call* c = what;
  const int rank = c->l.rank, world = c->l.world;
  const int64_t part = c->g.x.pitch * c->g.x.rows * element;
  usleep(200);
#ifdef DEADLOCK
  if (rank == 1 && c->l.failures != NULL) {
    c->l.failures[7] = (failure){3, rank, 1, 3, 0, 12, 0, 0, 0, 5, 3, 4, c->l.timeout_ns};
    fail(719);
    return;
  }
#endif
#ifndef EARLY
  meet(&c->l, 0);  // every rank's output may be written
#endif
  for (int to = 0; to < world; ++to)
    memcpy((char*)c->g.y[to].data + rank * part, (char*)c->g.x.data + to * part, (size_t)part);
  meet(&c->l, 1);  // every rank's output is complete
}

int pk_launch(void* stream, int blocks, int cooperative, const void* g, const launch* run) {
  if (blocks != 132 || !cooperative || stream == NULL) return 1;
  call c = {*(const arguments*)g, *run};
  enqueue(exchange, &c, sizeof c);
  return 0;
}

// --- the judge's own device code ---
static void sleep_ns(void* what) { usleep((useconds_t)(*(uint64_t*)what / 1000)); }
int judge_delay(void* stream, uint64_t ns) { return enqueue(sleep_ns, &ns, sizeof ns), 0; }

static void count(void* what) { ++**(uint32_t**)what; }
int judge_meet(void* stream, void* const* counters, int rank, int world, uint64_t timeout_ns) {
  return enqueue(count, &counters[rank], sizeof(void*)), 0;
}
