// Tile coordinates and small integer helpers that host and device share.
#pragma once

#if defined(__CUDACC__)
#define PK_FN __host__ __device__ __forceinline__
#define PK_ROLE static __device__ __forceinline__ void
#define PK_DEVICE __device__ __forceinline__
#define PK_UNROLL _Pragma("unroll")
#else
#define PK_FN inline
#define PK_ROLE static void
#define PK_DEVICE inline
#define PK_UNROLL
#endif

namespace pk {

// Largest world size that kernel arguments have room for.
inline constexpr int max_ranks = 8;

// Shared memory that one block may use, on sm_90: 227 KiB.
inline constexpr int shared_memory_bytes = 232448;

// Where a tile lies in a layout, counted in tiles of its own shape: {row, col} or {plane, row, col}.
struct coord {
  int plane, row, col;
  PK_FN constexpr coord(int row_, int col_) : plane(0), row(row_), col(col_) {}
  PK_FN constexpr coord(int plane_, int row_, int col_) : plane(plane_), row(row_), col(col_) {}
};

// How setup() sees a tensor. `cols` merges trailing dimensions so that a row has that many elements; `planes`
// splits all rows into that many equal planes; of `parts` equal parts of the columns, part `part` is bound.
// 0 leaves rows and planes as the tensor has them.
struct view {
  int planes = 0, cols = 0, parts = 1, part = 0;
};

// Rows of 64 elements, if rows of `cols` can be cut so: what a kernel of small parts sees, whatever the tensor's
// rows are.
PK_FN constexpr view short_rows(int cols, int planes = 0) { return {planes, cols % 64 == 0 ? 64 : 0}; }

// Threads of a group<G>: G warpgroups, or the two spare warps beside the issuers of a compute SM if G is 0.
PK_FN constexpr int threads_of(int G) { return G == 0 ? 64 : 128 * G; }

PK_FN constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// For constants. At run time there are min and max: CUDA has them in the global namespace, where a second
// pair would be ambiguous.
PK_FN constexpr int least(int a, int b) { return a < b ? a : b; }
PK_FN constexpr int most(int a, int b) { return a > b ? a : b; }
#if defined(__CUDACC__)
using ::max;
using ::min;
#else
inline int min(int a, int b) { return least(a, b); }
inline int max(int a, int b) { return most(a, b); }
#endif

// first, first + stride, ... below end: what `for (int t : self.tasks(n))` runs over.
struct strided {
  struct iterator {
    int at, stride;
    PK_FN constexpr int operator*() const { return at; }
    PK_FN constexpr iterator& operator++() { at += stride; return *this; }
    PK_FN constexpr bool operator!=(const iterator& end) const { return at < end.at; }
  };
  int first, stride, count;
  PK_FN constexpr iterator begin() const { return {first, stride}; }
  PK_FN constexpr iterator end() const { return {count, stride}; }
};

}  // namespace pk
