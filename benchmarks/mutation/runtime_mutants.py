"""How pk_runtime's own GPU headers are broken: one edit each, by the hazard that it brings back.

H1 to H26 are the hazards of multi-GPU kernels that docs/decisions/0010-headers-on-a-cpu.md lists.
"""

from dataclasses import dataclass, field
from pathlib import Path

from pk_runtime.kernels import shipped_kernel, shipped_names

HEADERS = Path("pk/sm90")
SOURCES = Path(__file__).parent / "sources"


@dataclass(frozen=True)
class RuntimeMutant:
    """One edit of a header, and what must be said of a kernel that is compiled with it.

    `kernel` is a shipped kernel or a file of `sources/`. It must be flagged as one of `kinds` (a
    finding's kind, or an outcome), and a line that the report names must contain `place` (for an
    outcome: its summary must).
    """

    hazard: str
    what: str
    header: str  # below include/
    old: str
    new: str
    kernel: str
    kinds: tuple[str, ...]
    place: str
    knobs: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    blocks: int = 1

    def header_text(self, original: str) -> str:
        """The header with the edit; ValueError if the place is no longer there exactly once."""
        if original.count(self.old) != 1:
            raise ValueError(f"{self.header} has {original.count(self.old)} times: {self.old!r}")
        return original.replace(self.old, self.new)


def source_of(kernel: str) -> str:
    """Source of a shipped kernel or of one in `sources/`."""
    if kernel in shipped_names():
        return shipped_kernel(kernel).source
    return (SOURCES / f"{kernel}.cu").read_text(encoding="utf-8")


_PTX, _SIGNAL, _LAUNCH = "pk/sm90/ptx.h", "pk/sm90/signal.h", "pk/sm90/launch.h"
_REGS, _RING, _WORKER, _MMA = (f"pk/sm90/{name}.h" for name in ("regs", "ring", "worker", "mma"))
_GEMM = "gemm_reducescatter"
_LONG = {"knobs": {"stages": 2}, "dims": {"M": 128, "N": 256, "K": 768}}
_TMA_STORE, _TMA_LOAD = "sm90::tma_store(dst.map", "tma_load(dst, src.map"
_LANDED = "  sm90::bulk_wait();  // complete, not merely read\n"
_ACQUIRE32, _ACQUIRE64 = "ld.acquire.sys.global.u32", "ld.acquire.sys.global.u64"
_RED32, _RED64 = "red.release.sys.global.add.u32", "red.release.sys.global.add.u64"
_FENCED_WAIT = "s.id, slot, own, wanted);\n    sm90::fence_async();"
_WRITES = "if (j == chunk) write_columns(self, x, t, j);\n  fence_async_shared();"
_PLAIN_ADD = '  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");'
_PLAIN_LOAD = '  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");'
_AT_LEAST = "  for (;;) {\n    seen = load_acquire(counter);\n    if (difference(seen - wanted) >= 0) return;"
_FIRST_LOOK = "  Counter seen = load_acquire(counter);\n  if (difference(seen - wanted) >= 0) return;"
_TARGET = "const std::uint64_t target = (sm90::load_acquire(own) / arrivals + 1) * arrivals;"
_ARRIVE = "      sm90::add_release(b.counters[(self.rank() + i) % self.world()], std::uint64_t(1));"
_EXACT = _FIRST_LOOK.replace(">=", "==") + "\n  const std::uint64_t start = global_time();\n"

RUNTIME_MUTANTS = (
    RuntimeMutant("H1", "signal() waits with .read", _SIGNAL, _LANDED, "  sm90::bulk_wait_read();\n", _GEMM, ("read_wait",), _TMA_STORE),
    RuntimeMutant("H1", "signal() does not wait", _SIGNAL, _LANDED, "", "reducescatter", ("no_wait", "read_wait"), _TMA_STORE),
    RuntimeMutant("H1", "bulk_wait() is a .read wait", _PTX, '"cp.async.bulk.wait_group 0;"', '"cp.async.bulk.wait_group.read 0;"', "reducescatter", ("read_wait",), _TMA_STORE),
    RuntimeMutant("H1", "bulk_wait() leaves one group pending", _PTX, '"cp.async.bulk.wait_group 0;"', '"cp.async.bulk.wait_group 1;"', "reducescatter", ("no_wait", "read_wait"), _TMA_STORE),
    RuntimeMutant("H1", "barrier() does not wait for stores", _SIGNAL, "    sm90::bulk_wait();\n    for", "    for", "barriers", ("no_wait", "read_wait"), _TMA_STORE),
    RuntimeMutant("H1", "a block leaves before its stores have landed", _LAUNCH, "  bulk_wait();\n  if (add_shared", "  bulk_wait_read();\n  if (add_shared", "allgather", ("read_wait",), _TMA_STORE),
    RuntimeMutant("H2", "waits load relaxed", _PTX, _ACQUIRE32, "ld.relaxed.sys.global.u32", _GEMM, ("relaxed_wait",), _ACQUIRE32.replace("acquire", "relaxed")),
    RuntimeMutant("H2", "waits load volatile", _PTX, _ACQUIRE32, "ld.volatile.global.u32", "exchange", ("relaxed_wait",), "ld.volatile.global.u32"),
    RuntimeMutant("H2", "barriers load relaxed", _PTX, _ACQUIRE64, "ld.relaxed.sys.global.u64", "barriers", ("relaxed_wait",), "ld.relaxed.sys.global.u64"),
    RuntimeMutant("H3", "wait() without its proxy fence", _SIGNAL, _FENCED_WAIT, "s.id, slot, own, wanted);", _GEMM, ("proxy_fence",), _TMA_LOAD),
    RuntimeMutant("H3", "wait() fences before it acquires", _SIGNAL, "    sm90::await_counter(self, sm90::failure_kind::signal, s.id, slot, own, wanted);\n    sm90::fence_async();", "    sm90::fence_async();\n    sm90::await_counter(self, sm90::failure_kind::signal, s.id, slot, own, wanted);", _GEMM, ("proxy_fence",), _TMA_LOAD),
    RuntimeMutant("H3", "the fence covers shared memory only", _PTX, '"fence.proxy.async;"', '"fence.proxy.async.shared::cta;"', _GEMM, ("proxy_fence",), _TMA_LOAD),
    RuntimeMutant("H3", "barrier() without its proxy fence", _SIGNAL, "b.id, 0, own, target);\n    sm90::fence_async();", "b.id, 0, own, target);", "barriers", ("proxy_fence",), _TMA_LOAD),
    RuntimeMutant("H3", "a launch begins without a proxy fence", _LAUNCH, "  fence_async();  // who", "  // who", "allgather", ("proxy_fence",), _TMA_STORE),
    RuntimeMutant("H4", "registers are stored without a fence", _REGS, _WRITES, _WRITES.split("\n")[0], _GEMM, ("proxy_fence",), "store_matrices(m.at(c), v)"),
    RuntimeMutant("H4", "the same beside a result tile", _REGS, _WRITES, _WRITES.split("\n")[0], "reduce", ("proxy_fence",), "store_matrices(m.at(c), v)"),
    RuntimeMutant("H4", "the fence is behind the barrier, by one thread", _REGS, "  sm90::write_any_columns(self, x, t, j);\n  self.sync();  // and may read all of it from here on", "  sm90::write_columns(self, x, t, 0);\n  self.sync();\n  if (self.leads()) sm90::fence_async_shared();", "reduce", ("proxy_fence",), "store_matrices(m.at(c), v)"),
    RuntimeMutant("H4", "mbarriers are initialised without a fence", _LAUNCH, "    fence_mbarrier_init();\n", "", "allgather", ("proxy_fence",), "mbarrier_init(full(i)"),
    RuntimeMutant("H5", "accumulate() without its fence", _REGS, "t.data[b][j * 4 + e] += v; });\n  sm90::fence_async_shared();", "t.data[b][j * 4 + e] += v; });", "reduce", ("proxy_fence",), "load_matrices(v, m.at(c))", dims={"M": 64, "N": 192}),
    RuntimeMutant("H5", "accumulate_columns() without its fence", _REGS, "t.data[b][(j * (X / 8) + i) * 4 + e] += v; });\n  sm90::fence_async_shared();", "t.data[b][(j * (X / 8) + i) * 4 + e] += v; });", _GEMM, ("proxy_fence",), "load_matrices(v, m.at(c))", **_LONG),
    RuntimeMutant("H6", "a slot is released while it is being stored", _RING, "      if (leads) bulk_wait_read();\n", "", "allgather", ("source_in_use",), _TMA_STORE, knobs={"depth": 2, "cols": 64}, dims={"M": 64, "N": 320}),
    RuntimeMutant("H6", "a slot is released with one store pending", _PTX, '"cp.async.bulk.wait_group.read 0;"', '"cp.async.bulk.wait_group.read 1;"', "allgather", ("source_in_use",), _TMA_STORE, knobs={"depth": 2, "cols": 64}, dims={"M": 64, "N": 320}),
    RuntimeMutant("H6", "a result is overwritten while it is stored", "pk/sm90/layout.h", "  if (self.leads()) sm90::bulk_wait_read();\n", "", "reduce", ("source_in_use",), _TMA_STORE, dims={"M": 64, "N": 192}),
    RuntimeMutant("H6", "one wgmma group too many is left in flight", _MMA, "  sm90::mma_wait_groups<Pending>();", "  sm90::mma_wait_groups<Pending + 1>();", _GEMM, ("wgmma_in_flight",), "wgmma", **_LONG),
    RuntimeMutant("H6", "the slots' parity is one phase ahead", _RING, "r.empty(at.slot), at.parity ^ 1);", "r.empty(at.slot), at.parity);", "allgather", ("deadlock",), "a free slot of ring"),
    RuntimeMutant("H6", "a slot is taken a phase too early", _RING, "r.empty(at.slot), at.parity ^ 1);", "r.empty(at.slot), 1);", "allgather", ("source_in_use", "unordered", "fault", "deadlock"), "", knobs={"depth": 2, "cols": 64}, dims={"M": 64, "N": 640}),
    RuntimeMutant("H7", "signals at gpu scope", _PTX, _RED32, "red.release.gpu.global.add.u32", _GEMM, ("scope",), "red.release.gpu"),
    RuntimeMutant("H7", "signals at cta scope", _PTX, _RED32, "red.release.cta.global.add.u32", "exchange", ("scope",), "red.release.cta"),
    RuntimeMutant("H7", "waits at gpu scope", _PTX, _ACQUIRE32, "ld.acquire.gpu.global.u32", "exchange", ("scope",), "ld.acquire.gpu"),
    RuntimeMutant("H7", "barriers at gpu scope", _PTX, _RED64, "red.release.gpu.global.add.u64", "barriers", ("scope",), "red.release.gpu"),
    RuntimeMutant("H7", "posts at gpu scope", _PTX, "st.relaxed.sys.global.v2.u64", "st.relaxed.gpu.global.v2.u64", "allreduce_ll", ("scope",), "st.relaxed.gpu"),
    RuntimeMutant("H7", "takes at gpu scope", _PTX, "ld.relaxed.sys.global.v2.u64", "ld.relaxed.gpu.global.v2.u64", "allgather_ll", ("scope",), "ld.relaxed.gpu"),
    RuntimeMutant("H8", "signals release nothing, data of the launch", _PTX, _RED32, "red.relaxed.sys.global.add.u32", "exchange", ("unreleased_signal",), "red.relaxed.sys"),
    RuntimeMutant("H8", "signals release nothing, data from before it", _PTX, _RED32, "red.relaxed.sys.global.add.u32", "reduce", ("unreleased_signal",), "red.relaxed.sys"),
    RuntimeMutant("H8", "roles end without telling each other", _PTX, "atom.acq_rel.cta.shared", "atom.relaxed.cta.shared", "allgather", ("unreleased_signal", "unordered"), "atom.relaxed"),
    RuntimeMutant("H9", "signals are plain stores", _PTX, _PLAIN_ADD, "  *at = *at + value;", "exchange", ("mixed_access",), "*at = *at + value;"),
    RuntimeMutant("H9", "waits poll with plain loads", _PTX, _PLAIN_LOAD, "  value = *at;", "exchange", ("mixed_access",), "value = *at;"),
    RuntimeMutant("H9", "flagged words are read as plain memory", _PTX, "ld.relaxed.sys.global.v2.u64", "ld.global.v2.u64", "allreduce_ll", ("mixed_access",), "ld.global.v2.u64"),
    RuntimeMutant("H10", "waits want exactly their count", _WORKER, _FIRST_LOOK + "\n  const std::uint64_t start = global_time();\n" + _AT_LEAST, _EXACT + _AT_LEAST.replace(">=", "=="), "exchange", ("deadlock",), "signals 'here'"),
    RuntimeMutant("H11", "the barrier's target is read after arriving", _SIGNAL, _TARGET + "\n    sm90::bulk_wait();\n    for (int i = 1; i <= self.world(); ++i)\n" + _ARRIVE, "sm90::bulk_wait();\n    for (int i = 1; i <= self.world(); ++i)\n" + _ARRIVE + "\n    " + _TARGET, "barriers", ("deadlock",), "a barrier"),
    RuntimeMutant("H11", "the barrier counts ranks, not blocks", _SIGNAL, "std::uint64_t(self.world()) * self.blocks();", "std::uint64_t(self.world());", "barriers", ("unordered", "no_wait", "read_wait", "deadlock"), "", blocks=2),
    RuntimeMutant("H11", "signals have one counter instead of two", _SIGNAL, "int(copy_of(self.epoch)) * s.slots + slot", "slot", "exchange", ("unordered", "deadlock"), ""),
    RuntimeMutant("H12", "a wait sets its counter back", _SIGNAL, "s.id, slot, own, wanted);\n", "s.id, slot, own, std::uint32_t(count));\n    if (count == s.per_launch) *own = 0;\n", "exchange", ("mixed_access",), "*own = 0"),
    RuntimeMutant("H13", "a slot is zeroed after it was published", _LAUNCH, "  const control& own = *run.controls[run.rank];\n  const bool together", "  const control& own = *run.controls[run.rank];\n  if (threadIdx.x == 64 && blockIdx.x == 0) run.controls[run.rank]->entered[(run.rank + 1) % run.world] = 0;\n  const bool together", "allgather", ("mixed_access",), "entered[(run.rank + 1)"),
    RuntimeMutant("H14", "two slots share a counter", _SIGNAL, "* s.slots + slot;", "* s.slots + slot / 2;", "exchange", ("unordered",), "load_piece", dims={"M": 64, "N": 128}),
    RuntimeMutant("H16", "slots are not checked", _SIGNAL, "  stop(self, failure_kind::out_of_range, [&](failure& f) { f.object = s.id", "  if (self.world() > 1000) stop(self, failure_kind::out_of_range, [&](failure& f) { f.object = s.id", "one_slot_too_few", ("out_of_bounds",), "add_release(sm90::counter_of"),
    RuntimeMutant("H16", "the check of slots is off by one", _SIGNAL, "unsigned(slot) < unsigned(s.slots)", "unsigned(slot) <= unsigned(s.slots)", "one_slot_too_few", ("out_of_bounds",), "add_release(sm90::counter_of"),
    RuntimeMutant("H17", "a launch begins before its peers are there", _LAUNCH, "epoch + (run.peers_bound ? 1 : 0);", "epoch;", "allgather_direct", ("unordered",), "store_piece(to"),
    RuntimeMutant("H17", "a launch ends while peers still write", _LAUNCH, "  if (blockIdx.x > 0) return;\n", "  if (blockIdx.x >= 0) return;\n", "allgather_direct", ("unordered",), "store_piece(to"),
    RuntimeMutant("H17", "register stores are not collected before the signal", _SIGNAL, "  self.sync();\n  if (!self.leads()) return;\n  sm90::check_slot", "  if (!self.leads()) return;\n  sm90::check_slot", "exchange", ("unordered",), "store_piece(to"),
    RuntimeMutant("H17", "only the waiting thread knows", _SIGNAL, "    sm90::fence_async();\n  }\n  self.sync();\n}\n\n// Every block", "    sm90::fence_async();\n  }\n}\n\n// Every block", "exchange", ("unordered",), "load_piece(from"),
    RuntimeMutant("H17", "roles of a block do not meet before it ends", _LAUNCH, "  self.sync();\n  if (!self.leads()) return;\n  bulk_wait", "  if (!self.leads()) return;\n  bulk_wait", "allgather_direct", ("unordered",), "store_piece(to"),
    RuntimeMutant("H18", "a block ends while its store reads shared memory", _LAUNCH, "  bulk_wait();\n  if (add_shared", "  if (add_shared", "reduce", ("exit_in_flight",), _TMA_STORE),
)  # fmt: skip
