"""Programs of one rank, each with its kernels, for triton_world.py, which starts this file: it
joins the other ranks, calls the functions of the names given and prints what they return."""

import importlib.util
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from pk_runtime import triton as pk

ROUNDS = 20


@triton.jit
def _spread(x, bases, n):
    own = pk.rank(bases)
    i = tl.arange(0, 16)
    for other in range(pk.world_size(bases)):
        pk.store(x + own * 16 + i, own * 100 + i, bases, own, other, i < n)


@triton.jit
def _collect(x, y, bases):
    own = pk.rank(bases)
    i = tl.arange(0, 16)
    right = (own + 1) % pk.world_size(bases)
    tl.store(y + i, pk.load(x + own * 16 + i, bases, own, right, i < 4, other=-1))
    pk.get(x + i, y + 16 + i, bases, own, right)


@triton.jit
def _move(y, z, bases, ranks):
    own = pk.rank(bases)
    i = tl.arange(0, 16)
    pk.put(y + i, z + own * 16 + i, bases, own, (own + 1) % ranks)
    if own == 0:  # from rank 1 to the last rank, by rank 0
        pk.copy(y + 16 + i, z + ranks * 16 + i, bases, own, 1, ranks - 1)


def moves(peers: pk.Peers) -> Any:
    """Every way to move data, through heaps at other addresses in every process."""
    ranks = peers.world_size
    x = peers.empty((ranks * 16,), torch.int32)
    y = peers.empty((32,), torch.int32)
    z = peers.empty(((ranks + 1) * 16,), torch.int32)
    _spread[(1,)](x, peers.bases, 10)
    peers.barrier()
    _collect[(1,)](x, y, peers.bases)
    peers.barrier()
    _move[(1,)](y, z, peers.bases, ranks)
    peers.barrier()
    peers.check()
    bases = peers.bases.tolist()
    return {"bases": bases, "x": x.tolist(), "y": y.tolist(), "z": z.tolist()}


@triton.jit
def _atomics(x, old, bases):
    own = pk.rank(bases)
    tl.store(old, pk.atomic_add(x, 5, bases, own, 0))
    tl.store(old + 1, pk.atomic_xchg(x + 1, 7, bases, own, 0, sem="release"))
    tl.store(old + 2, pk.atomic_and(x + 2, 6, bases, own, 0, sem="relaxed"))
    tl.store(old + 3, pk.atomic_or(x + 3, 9, bases, own, 0, sem="acquire"))
    tl.store(old + 4, pk.atomic_xor(x + 4, 5, bases, own, 0))
    tl.store(old + 5, pk.atomic_min(x + 5, -2, bases, own, 0))
    tl.store(old + 6, pk.atomic_max(x + 6, 40, bases, own, 0))
    tl.store(old + 7, pk.atomic_cas(x + 7, 3, 30, bases, own, 0))
    tl.store(old + 8, pk.atomic_cas(x + 8, 99, 30, bases, own, 0))
    i = tl.arange(0, 8)
    pk.atomic_add(x + 16 + i, i, bases, own, 0, mask=i < 6)


@triton.jit
def _add_one(x, bases):
    pk.atomic_add(x, tl.full((), 1, x.dtype.element_ty), bases, pk.rank(bases), 0)


def atomics(peers: pk.Peers) -> Any:
    """Each atomic on rank 0's memory, done by rank 1."""
    x = peers.empty((24,), torch.int32)
    old = torch.zeros(9, dtype=torch.int32, device=peers.device)
    if peers.rank == 0:
        x[:9] = torch.tensor([1, 2, 3, 4, 5, 6, 7, 3, 3])
    peers.barrier()
    if peers.rank == 1:
        _atomics[(1,)](x, old, peers.bases)
    peers.barrier()
    return {"x": x.tolist(), "old": old.tolist()}


def half(peers: pk.Peers) -> Any:
    """A sum of 16 bits on rank 0's memory, which a CPU cannot do."""
    x = peers.empty((1,), torch.float16)
    refusal = ""
    if peers.rank == 1:
        try:
            _add_one[(1,)](x, peers.bases)
        except Exception as error:  # noqa: BLE001  the interpreter's own class, in every version
            refusal = str(error)
    peers.barrier()
    return {"value": x.item(), "refusal": refusal}


@triton.jit
def _narrow(x, bases):
    own = pk.rank(bases)
    pk.atomic_add(x, 1, bases, own, own, scope="gpu")


@triton.jit
def _contend(counts, wide, real, lock, guarded, bases, n):
    own = pk.rank(bases)
    for _ in range(n):
        pk.atomic_add(counts, 1, bases, own, 0)
        pk.atomic_add(wide, tl.full((), 1 << 33, tl.int64), bases, own, 0)
        pk.atomic_add(real, 0.5, bases, own, 0)
        while pk.atomic_cas(lock, 0, 1, bases, own, 0, sem="acquire") != 0:
            pass
        pk.store(guarded, pk.load(guarded, bases, own, 0) + 1, bases, own, 0)
        pk.atomic_xchg(lock, 0, bases, own, 0, sem="release")


def contention(peers: pk.Peers) -> Any:
    """All ranks count on rank 0 at once: by atomics, and by plain accesses under a lock."""
    counts, lock, guarded = (peers.empty((1,), torch.int32) for _ in range(3))
    wide = peers.empty((1,), torch.int64)
    real = peers.empty((1,), torch.float32)
    peers.barrier()
    _contend[(1,)](counts, wide, real, lock, guarded, peers.bases, ROUNDS)
    peers.barrier()
    return [counts.item(), wide.item(), real.item(), guarded.item()]


@triton.jit
def _pass_on(inbox, arrived, taken, bad, bases, rounds):
    own = pk.rank(bases)
    ranks = pk.world_size(bases)
    right = (own + 1) % ranks
    left = (own + ranks - 1) % ranks
    i = tl.arange(0, 64)
    for n in range(rounds):
        pk.wait(taken, 0, n, bases)  # the right neighbour has read the last one
        pk.store(inbox + i, i * 1000 + n, bases, own, right)
        pk.signal(arrived, 0, bases, own, right)
        pk.wait(arrived, 0, n + 1, bases)
        wrong = tl.load(inbox + i) != i * 1000 + n
        tl.store(bad + n, tl.sum(wrong.to(tl.int32), 0))
        pk.signal(taken, 0, bases, own, left)


def messages(peers: pk.Peers) -> Any:
    """A ring in which each rank sends and takes one message a round, without any barrier."""
    inbox = peers.empty((64,), torch.int32)
    arrived, taken = peers.empty((1,), torch.int32), peers.empty((1,), torch.int32)
    bad = torch.full((ROUNDS,), -1, dtype=torch.int32, device=peers.device)
    _pass_on[(1,)](inbox, arrived, taken, bad, peers.bases, ROUNDS)
    peers.barrier()
    peers.check()
    return {"bad": bad.tolist(), "arrived": arrived.item(), "taken": taken.item()}


@triton.jit
def _tell(x, number, bases):
    own = pk.rank(bases)
    for other in range(pk.world_size(bases)):
        pk.store(x + own, number, bases, own, other)


@triton.jit
def _epoch(x, bases):
    tl.store(x, pk.epoch(bases))


def barriers(peers: pk.Peers) -> Any:
    """Barriers back to back, with a rank that is late by turns; and their number."""
    x = peers.empty((peers.world_size,), torch.int32)
    wrong = 0
    before = torch.zeros(1, dtype=torch.int32, device=peers.device)
    _epoch[(1,)](before, peers.bases)
    for number in range(1, ROUNDS + 1):
        if number % peers.world_size == peers.rank:
            time.sleep(0.005)
        _tell[(1,)](x, number, peers.bases)
        peers.barrier()
        wrong += sum(value != number for value in x.tolist())
        peers.barrier()
    after = torch.zeros(1, dtype=torch.int32, device=peers.device)
    _epoch[(1,)](after, peers.bases)
    return {"wrong": wrong, "epochs": int(after.item()) - before.item()}


@triton.jit
def _wait_for(flags, first, value, came, bases):
    slot = first + tl.program_id(0)
    tl.store(came + slot, pk.wait(flags, slot, value, bases).to(tl.int32))


@triton.jit
def _publish(flags, slot, value, bases):
    pk.publish(flags, slot, value, bases, pk.rank(bases), 1)


def timeouts(peers: pk.Peers) -> Any:
    """Rank 1 waits for flags of which nobody raises some: the kernel ends, with a report."""
    flags = peers.workspace("turns", (100,), torch.int32)
    came = torch.full((100,), -1, dtype=torch.int32, device=peers.device)
    if peers.rank == 0:
        for slot, value in ((0, 7), (0, 5), (2, 9)):  # a lower value changes nothing
            _publish[(1,)](flags, slot, value, peers.bases)
    peers.barrier()
    peers.check()
    message = ""
    if peers.rank == 1:
        _wait_for[(3,)](flags, 0, 7, came, peers.bases)
        try:
            peers.check()
        except pk.PeerTimeoutError as error:
            message = str(error)
        _wait_for[(80,)](flags, 10, 1, came, peers.bases)
    return {"came": came[:3].tolist(), "message": message, "lines": len(peers.failures())}


def refusals(peers: pk.Peers) -> Any:
    """What the host refuses: each message, by rank."""
    said = []
    peers.workspace("a", (4,), torch.int32)
    for ask in (
        lambda: peers.workspace("a", (5,), torch.int32),
        lambda: peers.empty((1 << 30,), torch.int32),
        lambda: peers.empty((1 + peers.rank,), torch.int32),
    ):
        try:
            ask()
        except (ValueError, pk.HeapError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def patterns(peers: pk.Peers) -> Any:
    """The largest error of each of the five patterns, over shapes, types and repeated launches."""
    from pk_runtime.triton.examples import PATTERNS

    worst: dict[str, float] = {}
    ranks = peers.world_size
    cases = [(33, 33 * ranks, 72, torch.bfloat16)]  # ragged; then one for tensor descriptors
    if ranks == 2:
        cases.append((64, 32 * ranks, 64, torch.float16))
    for m, n, k, dtype in cases:
        generator = torch.Generator().manual_seed(m)
        a = torch.randn(m, k, generator=generator).to(peers.device, dtype)
        b = (torch.randn(k, n, generator=generator) / k**0.5).to(peers.device, dtype)
        wanted = a.double() @ b.double()
        own = b[:, peers.rank * n // ranks :][:, : n // ranks].contiguous()
        c = peers.empty((m, n), dtype)
        for name in PATTERNS:
            module = importlib.import_module(f"pk_runtime.triton.examples.{name}")
            for _ in range(2):
                c.fill_(float("nan"))
                module.launch(peers, {"a": a, "b": own}, {"c": c})
                peers.check()
                error = ((c.double() - wanted).abs() / (1 + wanted.abs())).max().item()
                worst[name] = max(worst.get(name, 0.0), error)
                peers.barrier()  # nobody begins the next launch before all have looked
    return worst


def guide(peers: pk.Peers) -> Any:
    """The candidate that docs/triton.md shows."""
    text = (Path(__file__).parents[2] / "docs" / "triton.md").read_text()
    source = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shown.py"
        file.write_text(source)
        spec = importlib.util.spec_from_file_location("shown", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        x, y = (peers.empty((1500,), torch.float32) for _ in range(2))
        x.copy_(torch.arange(1500) + 10000 * peers.rank)
        module.launch(peers, {"x": x}, {"y": y})
        peers.check()
    return [y[0].item(), y[1499].item()]


if __name__ == "__main__":
    rank, ranks, folder, timeout_s, *names = sys.argv[1:]
    joined = pk.join(
        *(Path(folder), int(rank), int(ranks)),
        heap_bytes=1 << 20,
        timeout_s=float(timeout_s),
        deadline_s=60,
    )
    results = {name: globals()[name](joined) for name in names}
    joined.close()
    sys.stdout.write(json.dumps(results))
