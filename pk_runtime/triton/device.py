"""What a Triton kernel does with its peers: functions to call inside `@triton.jit` kernels.

A symmetric heap is the same memory layout on every rank. `bases` is a table of int64: `bases[r]`
is where rank r's heap begins, as this process sees it. A pointer into the heap of `from_rank`
(your own rank, as a rule) becomes the pointer to the same place in the heap of `to_rank` by adding
the distance of the two bases. Heaps begin at page boundaries, so that distance is a multiple of
4096 bytes and what the compiler knows about alignment survives: 16-byte accesses stay 16-byte.

What the library needs lies in front of the table: `bases[-1]` address of the report, `bases[-2]`
polls before a wait gives up, `bases[-3]` own rank, `bases[-4]` number of ranks. The first bytes of
every heap are the library's own, too: see `peers.py`.

Rules, each of which these functions keep for you unless it says otherwise:
- Peer-visible atomics have system scope. A narrower `scope` is taken as it is given: it is right
  only for memory that no other rank and no copy engine touches, and nothing checks that.
- A release covers what all threads of the program stored before, an acquire what all threads load
  after: the block synchronises before the one and after the other.
- Flags only grow, waits compare with >=, and every wait ends: at the latest after `bases[-2]`
  polls, with a record of who waited for what. Nothing polls by plain loads or unlocks by plain
  stores.
- Data that a flag announces is written with plain stores, never through a tensor descriptor: up to
  Triton 3.6 nothing waits for such a store, and nothing orders such a load behind a wait.
"""

import os

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter; settled by TRITON_INTERPRET when Triton starts."""

# Layout of the table's front and of each heap's first page; peers.py fills them in.
AT_REPORT = tl.constexpr(1)
AT_POLLS = tl.constexpr(2)
AT_RANK = tl.constexpr(3)
AT_WORLD = tl.constexpr(4)
EPOCH_WORD = tl.constexpr(256)
MAX_RANKS = tl.constexpr(32)
REPORT_ROWS = tl.constexpr(63)
REPORT_COLUMNS = tl.constexpr(6)

# Defaults of atomics. Triton up to 3.6 does not compile a call that leaves a plain text to default.
ACQ_REL = tl.constexpr("acq_rel")
SYSTEM = tl.constexpr("sys")

if INTERPRETED:

    def pause() -> None:
        """Lets another process run: the ranks share the cores of one machine."""
        os.sched_yield()

    def _atomic_between_processes(ptr: tl.tensor) -> None:
        # The interpreter guards 16-bit sums with a lock of its own process, which peers do not see.
        bits = ptr.dtype.scalar.element_ty.primitive_bitwidth
        if bits < 32:
            raise TypeError(
                f"atomics of {bits} bits on a CPU: between processes only 32 and 64 are"
            )

    def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor) -> tl.tensor:
        """total + a @ b. The interpreter's own `tl.dot` takes the bits of bf16 for integers; sums
        are in fp32 either way, where products of 16-bit operands are exact."""
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)

else:

    @triton.jit
    def dot(a, b, total):
        """total + a @ b on the tensor cores, as `tl.dot`; right for bf16 on a CPU too."""
        return tl.dot(a, b, total)

    @triton.jit
    def pause():
        """Nothing: on a GPU the poll itself takes most of a microsecond."""

    @triton.jit
    def _atomic_between_processes(ptr):
        pass


@triton.jit
def rank(bases):
    """The own rank, a scalar int64."""
    return tl.load(bases - AT_RANK)


@triton.jit
def world_size(bases):
    """How many ranks there are, a scalar int64."""
    return tl.load(bases - AT_WORLD)


@triton.jit
def epoch(bases):
    """How many barriers this rank has entered, int32: the same number on all ranks between two
    barriers, and larger in every launch that begins with one. Made for `publish` and `wait`."""
    return tl.load(_own_header(bases) + EPOCH_WORD)


@triton.jit
def peer_pointer(ptr, bases, from_rank, to_rank):
    """`ptr`, a pointer or a block of pointers into the heap of `from_rank`, moved to the same place
    in the heap of `to_rank`. Costs two loads of a table in cache, and one addition per pointer; in
    a loop over tiles call it once, outside."""
    bits: tl.constexpr = ptr.dtype.scalar.element_ty.primitive_bitwidth
    item: tl.constexpr = bits // 8 if bits > 8 else 1
    distance = tl.load(bases + to_rank) - tl.load(bases + from_rank)
    # Heaps begin at multiples of 4096 bytes, and no element is larger than 8.
    return ptr + tl.multiple_of(distance // item, 512)


@triton.jit
def load(ptr, bases, from_rank, to_rank, mask=None, other=None):
    """The values at `ptr` in the heap of `to_rank`; in no order with other ranks' stores, except
    through `wait`, `barrier` or an acquiring atomic."""
    return tl.load(peer_pointer(ptr, bases, from_rank, to_rank), mask=mask, other=other)


@triton.jit
def store(ptr, value, bases, from_rank, to_rank, mask=None):
    """Stores `value` at `ptr` in the heap of `to_rank`; published by a later `signal`, `publish`,
    `barrier` or releasing atomic of this program."""
    tl.store(peer_pointer(ptr, bases, from_rank, to_rank), value, mask=mask)


@triton.jit
def get(source, destination, bases, from_rank, to_rank, mask=None):
    """Copies from `source` in the heap of `to_rank` to `destination`, any pointer of this rank."""
    value = tl.load(peer_pointer(source, bases, from_rank, to_rank), mask=mask)
    tl.store(destination, value, mask=mask)


@triton.jit
def put(source, destination, bases, from_rank, to_rank, mask=None):
    """Copies from `source`, any pointer of this rank, to `destination` in the heap of `to_rank`."""
    value = tl.load(source, mask=mask)
    tl.store(peer_pointer(destination, bases, from_rank, to_rank), value, mask=mask)


@triton.jit
def copy(source, destination, bases, own_rank, source_rank, destination_rank, mask=None):
    """Copies from `source` in the heap of one rank to `destination` in that of another; both
    pointers are given as those of `own_rank`, which does the work."""
    value = tl.load(peer_pointer(source, bases, own_rank, source_rank), mask=mask)
    tl.store(peer_pointer(destination, bases, own_rank, destination_rank), value, mask=mask)


@triton.jit
def _before(sem: tl.constexpr):
    if sem == "release" or sem == "acq_rel":
        tl.debug_barrier()


@triton.jit
def _after(sem: tl.constexpr):
    if sem == "acquire" or sem == "acq_rel":
        tl.debug_barrier()


@triton.jit
def atomic_add(
    ptr, value, bases, from_rank, to_rank,
    mask=None, sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """Adds `value` at `ptr` in the heap of `to_rank`, and returns what was there. `sem` is one of
    "relaxed", "acquire", "release", "acq_rel"; so too for the seven functions that follow. On a CPU
    the elements have 32 or 64 bits."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_add(there, value, mask=mask, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def atomic_xchg(
    ptr, value, bases, from_rank, to_rank,
    mask=None, sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """Replaces what is at `ptr` in the heap of `to_rank` by `value`, and returns what was there."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_xchg(there, value, mask=mask, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def atomic_and(
    ptr, value, bases, from_rank, to_rank,
    mask=None, sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """Bitwise and of integers at `ptr` in the heap of `to_rank`; returns what was there."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_and(there, value, mask=mask, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def atomic_or(
    ptr, value, bases, from_rank, to_rank,
    mask=None, sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """Bitwise or of integers at `ptr` in the heap of `to_rank`; returns what was there."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_or(there, value, mask=mask, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def atomic_xor(
    ptr, value, bases, from_rank, to_rank,
    mask=None, sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """Bitwise exclusive or of integers at `ptr` in the heap of `to_rank`; returns the old value."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_xor(there, value, mask=mask, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def atomic_min(
    ptr, value, bases, from_rank, to_rank,
    mask=None, sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """The smaller of `value` and what is at `ptr` in the heap of `to_rank` stays there; returns
    what was there."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_min(there, value, mask=mask, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def atomic_max(
    ptr, value, bases, from_rank, to_rank,
    mask=None, sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """The larger of `value` and what is at `ptr` in the heap of `to_rank` stays there; returns what
    was there."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_max(there, value, mask=mask, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def atomic_cas(
    ptr, expected, value, bases, from_rank, to_rank,
    sem: tl.constexpr = ACQ_REL, scope: tl.constexpr = SYSTEM,
):  # fmt: skip
    """Replaces what is at `ptr` in the heap of `to_rank` by `value` if it equals `expected`, and
    returns what was there. Triton has no masked form."""
    _atomic_between_processes(ptr)
    _before(sem)
    there = peer_pointer(ptr, bases, from_rank, to_rank)
    old = tl.atomic_cas(there, expected, value, sem=sem, scope=scope)
    _after(sem)
    return old


@triton.jit
def signal(flags, slot, bases, from_rank, to_rank, value=1):
    """Adds `value` to `flags[slot]` (int32) of `to_rank`, once everything that this program stored
    before can be seen there. For counters that several programs or ranks feed."""
    tl.debug_barrier()
    there = peer_pointer(flags + slot, bases, from_rank, to_rank)
    tl.atomic_add(there, value, sem="release", scope="sys")


@triton.jit
def publish(flags, slot, value, bases, from_rank, to_rank):
    """Raises `flags[slot]` (int32) of `to_rank` to `value` and never lowers it, once everything
    that this program stored before can be seen there. With `epoch(bases)` as value no launch needs
    to reset flags."""
    tl.debug_barrier()
    there = peer_pointer(flags + slot, bases, from_rank, to_rank)
    tl.atomic_max(there, value, sem="release", scope="sys")


@triton.jit
def wait(flags, slot, value, bases):
    """Waits until the own `flags[slot]` (int32) is at least `value`; true if it came to that. What
    the signalling program stored before can then be loaded by all threads. After `bases[-2]` polls
    it writes rank, program, flag and both values into the report and returns false, and later waits
    of this rank give up after two polls, so that the kernel ends.

    The bound counts polls and not nanoseconds: threads read clocks at different times, and a loop
    of one program must end in all its threads at once. What an atomic returned is the same for all
    of them, hence the polls are atomics."""
    here = flags + slot
    report = tl.load(bases - AT_REPORT).to(tl.pointer_type(tl.int64))
    # A rank that has given up once does not wait again: its results are lost anyway.
    limit = tl.where(
        tl.atomic_add(report, 0, sem="relaxed", scope="sys") > 0, 1, tl.load(bases - AT_POLLS)
    )
    seen = tl.atomic_add(here, 0, sem="acquire", scope="sys")
    polls = limit * 0
    while (seen - value < 0) & (polls < limit):
        pause()
        seen = tl.atomic_add(here, 0, sem="acquire", scope="sys")
        polls += 1
    arrived = seen - value >= 0
    if not arrived:
        _give_up(report, flags, slot, value, seen, bases)
    tl.debug_barrier()
    return arrived


@triton.jit
def barrier(bases):
    """All ranks meet; exactly one program of each rank calls it. What that program stored before,
    and earlier kernels of its stream, can then be loaded by every rank. Programs of the same kernel
    that run beside it are not covered: give the barrier a launch of its own (`Peers.barrier`)."""
    own = rank(bases)
    ranks = world_size(bases)
    header = _own_header(bases)
    tl.debug_barrier()
    # One program, and an atomic rather than a plain increment: every thread gets the same number.
    number = tl.atomic_add(header + EPOCH_WORD, 1, sem="relaxed", scope="sys") + 1
    others = tl.arange(0, MAX_RANKS)
    there = (
        tl.load(bases + others, mask=others < ranks, other=0).to(tl.pointer_type(tl.int32)) + own
    )
    tl.atomic_add(there, 1, mask=others < ranks, sem="release", scope="sys")
    for other in range(ranks):
        wait(header, other, number, bases)


@triton.jit
def _own_header(bases):
    return tl.load(bases + rank(bases)).to(tl.pointer_type(tl.int32))


@triton.jit
def _give_up(report, flags, slot, value, seen, bases):
    row = tl.atomic_add(report, 1, sem="relaxed", scope="sys")
    if row < REPORT_ROWS:
        line = report + (row + 1) * REPORT_COLUMNS
        grid_row = tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
        tl.store(line, rank(bases))
        tl.store(line + 1, (tl.program_id(0) + tl.num_programs(0) * grid_row).to(tl.int64))
        tl.store(line + 2, flags.to(tl.int64))
        tl.store(line + 3, slot + 0 * row)
        tl.store(line + 4, value + 0 * row)
        tl.store(line + 5, seen.to(tl.int64))
