// What the headers of the simulator ask of its engine. Everything a kernel does that takes time, moves
// data or waits goes through these functions; the engine (pk_runtime/sim) is compiled once, apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pk/common/coord.h>

namespace pk::sim {

struct fiber;  // one role of one block of one rank

enum class dtype : std::uint8_t { bf16, fp16, fp32, i32 };
enum class role : std::uint8_t { loader, consumer, storer, communicator };

// A tensor of one rank, seen as planes of rows x cols elements. `owner` is the rank whose memory it is.
struct tensor_ref {
  void* data = nullptr;
  dtype type = dtype::bf16;
  int id = -1, owner = 0;
  int planes = 0, rows = 0, cols = 0;
  std::int64_t row_stride = 0, plane_stride = 0;  // in elements
  std::int64_t first_box = 0;                     // where the L2 model keeps its 64-row x 128-byte boxes
};

struct tile_ref {
  void* data;
  dtype type;
  int rows, cols;
};

// Counters of one signal object, one array per rank.
struct signal_ref {
  int id = -1, slots = 0;
};

// The mailbox of one name, a box on every rank: `slots` slabs of `bytes` bytes from every source.
struct mailbox_ref {
  int id = -1, slots = 0, bytes = 0;
};

inline constexpr int max_depth = 16;

// State of one pipeline ring in shared memory. Counters are monotone; slot = counter % depth.
struct ring_core {
  int depth = 0, id = 0;
  std::uint32_t acquired = 0, committed = 0, waited = 0, released = 0;
  int loads_in_flight[max_depth] = {};
  double full_at[max_depth] = {}, free_at[max_depth] = {};
  fiber* waiting_producer = nullptr;
  fiber* waiting_consumer = nullptr;
  fiber* producer = nullptr;  // who last filled it, who last emptied it
  fiber* consumer = nullptr;
};

bool arithmetic();  // false in timing mode: tiles then have no contents
int rank_of(const fiber&);
int world_of(const fiber&);
int block_of(const fiber&);   // index within the blocks that run this role
int blocks_of(const fiber&);  // how many blocks of this rank run this role

void claim_shared(std::size_t bytes);  // counts shared memory while a block's storage is constructed
void ring_init(ring_core&, int depth);
int ring_acquire(fiber&, ring_core&);
void ring_load(fiber&, ring_core&, const tile_ref&, const tensor_ref&, coord);
void ring_commit(fiber&, ring_core&);
int ring_wait(fiber&, ring_core&);
void ring_release(fiber&, ring_core&);

void store_async(fiber&, const tensor_ref&, coord, const tile_ref&, bool add);
void drain_reads(fiber&);
void signal(fiber&, const signal_ref&, int rank, int slot);
void signal_all(fiber&, const signal_ref&, int slot);
void wait(fiber&, const signal_ref&, int slot, int count);
void barrier(fiber&, const signal_ref&);

// Slabs: registers as a tile_ref, row-major. A load is complete at its first use, see slab_use.
double slab_load(fiber&, const tile_ref&, const tensor_ref&, coord);  // when its data is there
void slab_use(fiber&, double ready_at);
void slab_store(fiber&, const tensor_ref&, coord, const tile_ref&);
void post(fiber&, const mailbox_ref&, int rank, int slot, const tile_ref&);
void take(fiber&, const mailbox_ref&, int source, int slot, const tile_ref&);

void mma_issue(fiber&, double flops);
void mma_reads(fiber&, const tile_ref& a, const tile_ref& b);
void mma_wait(fiber&, int pending);
void shared_access(fiber&, const tile_ref&, bool write);  // between registers and a shared tile
void vector_work(fiber&, double elements, double shared_bytes);

// Numeric kernels on whole tiles, row-major.
void mma(float* c, const tile_ref& a, const tile_ref& b, bool b_transposed);
void to_float(float* out, const tile_ref& in);
void from_float(const tile_ref& out, const float* in, int in_cols, int first_col);
float to_float(dtype, const void* element);
void from_float(dtype, void* element, float value);

// The host side of a launch, once per rank.
class host_state;
tensor_ref bind_tensor(host_state&, const char* name, int rank, bool output, bool peers, const view&, dtype);
int dimension(const host_state&, const char* name, int i);
tensor_ref bind_scratch(host_state&, const char* name, int rank, int planes, int rows, int cols, dtype);
signal_ref bind_signals(host_state&, const char* name, int slots, int per_launch, bool is_barrier);
mailbox_ref bind_mailbox(host_state&, const char* name, int slots, int bytes);
void require(host_state&, bool holds, const char* message);
int host_rank(const host_state&);
int host_world(const host_state&);

// What PK_KERNEL defines: the kernel as the engine sees it.
struct program {
  const char* name;
  std::size_t args_bytes, shared_bytes, comm_shared_bytes;
  int comm_sms;
  bool has[4];  // by role
  void (*setup)(host_state&, void* args);
  void (*construct_shared)(void*);
  void (*construct_comm_shared)(void*);
  void (*run)(role, fiber&, const void* args, void* shared);
};

}  // namespace pk::sim

extern "C" const pk::sim::program pk_program;
