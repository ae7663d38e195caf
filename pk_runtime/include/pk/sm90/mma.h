// wgmma: a warpgroup multiplies 64 rows of A by K x N of B, both in shared memory, 16 columns of A at a
// time. A is K-major; B is N-major (stored K x N) or K-major (stored N x K).
//
// A matrix descriptor names, in units of 16 bytes: the start address (bits 0-13), the leading dimension
// byte offset LBO (16-29), the stride dimension byte offset SBO (32-45); bits 62-63 = 1 say 128-byte
// swizzle. With 128-byte swizzle an operand is made of atoms of 8 rows x 128 bytes, 1024 bytes each:
//   K-major: atom = 8 rows (of M or N) x 64 elements of K. SBO = from 8 rows to the next 8: 1024. LBO is not
//            used. The next 16 of K are 32 bytes further in the atom, the next 64 of K in the next panel.
//   N-major: atom = 8 rows of K x 64 elements of N. SBO = from 8 rows of K to the next 8: 1024. LBO = from 64
//            columns of N to the next 64: one panel. The next 16 of K are two atoms, 2048 bytes, further.
// Start addresses move inside an atom only by multiples of 16 bytes within its first row: base offset 0.
#pragma once

#include <pk/sm90/regs.h>

namespace pk::sm90 {

PK_DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PK_DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
PK_DEVICE void mma_wait_groups() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// The tensor cores read and write c behind the compiler's back: no value of c moves across this line.
template <int R, int C, int G>
PK_DEVICE void pin(reg_tile<float, R, C, G>& c) {
  each(c, [](float& v, int, int, int) { asm volatile("" : "+f"(v)::"memory"); });
}

PK_DEVICE std::uint64_t descriptor(std::uint32_t at, int leading_bytes, int stride_bytes) {
  return std::uint64_t(1) << 62 | std::uint64_t(stride_bytes >> 4) << 32 | std::uint64_t(leading_bytes >> 4) << 16 |
         std::uint64_t((at & 0x3ffff) >> 4);
}

// Advances a descriptor's start address; it stays inside 18 bits because shared memory does.
PK_DEVICE std::uint64_t advanced(std::uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }

// One instruction: c[64, N] += a[64, 16] * b[16, N], c in wgmma's accumulator layout.
template <class T, int N, int NMajor>
struct multiply_add;

#define PK_C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define PK_C16(i) PK_C4(i), PK_C4(i + 4), PK_C4(i + 8), PK_C4(i + 12)
#define PK_C32(i) PK_C16(i), PK_C16(i + 16)
#define PK_R32_0 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PK_R32_1 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PK_R32_2 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PK_R32_3 \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// The last four operands: both descriptors, 1 = accumulate, 1 = B is N-major.
#define PK_MULTIPLY_ADD(T, TEXT, N, REGISTERS, A, B, ONE, MAJOR, ...)                                      \
  template <int NMajor>                                                                                   \
  struct multiply_add<T, N, NMajor> {                                                                     \
    static PK_DEVICE void run(float (&c)[N / 2], std::uint64_t a, std::uint64_t b) {                      \
      asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " ONE ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N \
                   "k16.f32." TEXT "." TEXT " {" REGISTERS "}, " A ", " B ", p, 1, 1, 0, " MAJOR ";\n}\n"   \
                   : __VA_ARGS__                                                                          \
                   : "l"(a), "l"(b), "n"(1), "n"(NMajor));                                                \
    }                                                                                                     \
  };
#define PK_MULTIPLY_ADDS(T, TEXT)                                                                           \
  PK_MULTIPLY_ADD(T, TEXT, 64, PK_R32_0, "%32", "%33", "%34", "%35", PK_C32(0))                             \
  PK_MULTIPLY_ADD(T, TEXT, 128, PK_R32_0 PK_R32_1, "%64", "%65", "%66", "%67", PK_C32(0), PK_C32(32))       \
  PK_MULTIPLY_ADD(T, TEXT, 192, PK_R32_0 PK_R32_1 PK_R32_2, "%96", "%97", "%98", "%99", PK_C32(0),          \
                  PK_C32(32), PK_C32(64))                                                                  \
  PK_MULTIPLY_ADD(T, TEXT, 256, PK_R32_0 PK_R32_1 PK_R32_2 PK_R32_3, "%128", "%129", "%130", "%131",        \
                  PK_C32(0), PK_C32(32), PK_C32(64), PK_C32(96))
PK_MULTIPLY_ADDS(bf16, "bf16")
PK_MULTIPLY_ADDS(fp16, "f16")
#undef PK_MULTIPLY_ADDS
#undef PK_MULTIPLY_ADD
#undef PK_R32_3
#undef PK_R32_2
#undef PK_R32_1
#undef PK_R32_0
#undef PK_C32
#undef PK_C16
#undef PK_C4

// c += a * b for the rows of this warpgroup, as one wgmma group. `b` describes B's first 16 of K; the next
// lie b_step(k) bytes further.
template <class T, int NMajor, int M, int K, int N, int G, class StepBytes>
PK_DEVICE void multiply_tiles(group<G> self, reg_tile<float, M, N, G>& c, const tile<T, M, K>& a, std::uint64_t b,
                              StepBytes b_step) {
  static_assert(sizeof(T) == 2 && dtype_of<T> != dtype::i32, "mma takes bf16 or fp16 operands");
  static_assert(N == 64 || N == 128 || N == 192 || N == 256, "mma needs 64, 128, 192 or 256 result columns");
  pin(c);
  mma_fence();
  PK_UNROLL
  for (int band = 0; band < c.bands; ++band) {
    const std::uint32_t at = shared_address(a.storage) + c.first_row(self, band) * 128;
    const std::uint64_t from = descriptor(at, 16, 1024);
    PK_UNROLL
    for (int k = 0; k < K; k += 16)
      multiply_add<T, N, NMajor>::run(c.data[band], advanced(from, k / 64 * (M * 128) + k % 64 * 2),
                                      advanced(b, b_step(k)));
  }
  mma_commit();
}

}  // namespace pk::sm90

namespace pk {

// c += a * b, still in flight: complete after mma_wait. Operands must stay until then.
template <class T, int M, int K, int N, int G>
PK_DEVICE void mma_async(group<G> self, reg_tile<float, M, N, G>& c, tile<T, M, K>& a, tile<T, K, N>& b) {
  const std::uint64_t from = sm90::descriptor(sm90::shared_address(b.storage), K * 128, 1024);
  sm90::multiply_tiles<T, 1>(self, c, a, from, [](int k) { return k * 128; });
}

// c += a * b^T, with b stored as N x K.
template <class T, int M, int K, int N, int G>
PK_DEVICE void mma_abt_async(group<G> self, reg_tile<float, M, N, G>& c, tile<T, M, K>& a, tile<T, N, K>& b) {
  const std::uint64_t from = sm90::descriptor(sm90::shared_address(b.storage), 16, 1024);
  sm90::multiply_tiles<T, 0>(self, c, a, from, [](int k) { return k / 64 * (N * 128) + k % 64 * 2; });
}

// At most `Pending` multiplications of c are still in flight afterwards.
template <int Pending, int R, int C, int G>
PK_DEVICE void mma_wait(group<G>, reg_tile<float, R, C, G>& c) {
  sm90::mma_wait_groups<Pending>();
  if constexpr (Pending == 0) sm90::pin(c);
}

}  // namespace pk
