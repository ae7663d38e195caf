"""One rank of the node's self-check (smoke.py starts it): one check, then one JSON line."""

import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pk_runtime.gpu.dispatch import Dispatcher, Row, Table
from pk_runtime.gpu.driver import Stream, driver, fill
from pk_runtime.gpu.group_kernel import GroupKernel
from pk_runtime.gpu.ipc import Mapping, SharedTensor, share
from pk_runtime.gpu.operator import operator
from pk_runtime.gpu.rank_kernel import DeviceError, RankKernel
from pk_runtime.gpu.symmetric import SymmetricError, SymmetricHeap
from pk_runtime.interface import Interface, TensorShape
from pk_runtime.torch_kernel import TorchKernel

DEADLINE_S = 12.0  # of every wait on the host
WAIT_S = 8.0  # of every wait in a kernel
COMPILE_S = 30.0  # the same, where ranks compile at different speed
START_S = 120.0
BF16 = torch.bfloat16
SMALL, ODD = (256, 128), (33, 129)

# The all-reduce that the project ships, as a problem describes it.
MATRIX = {"shape": ["M", "N"], "dtype": "bfloat16"}
INTERFACE = {"inputs": [{"name": "x", **MATRIX}], "outputs": [{"name": "y", **MATRIX}]}


@dataclass(frozen=True)
class Rank:
    """Who this process is, and what the node's check prepared for it."""

    rank: int
    world_size: int
    device: int
    run: Path
    libraries: dict[str, Path]

    def heap(self) -> SymmetricHeap:
        """The symmetric memory of all ranks of this check."""
        return SymmetricHeap.join(self.run, self.rank, self.world_size, self.device, DEADLINE_S)

    def inputs(self, seed: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
        """Every rank's x: small whole numbers, so that sums are exact in any order."""
        draw = torch.Generator().manual_seed(seed)
        return [
            torch.randint(-4, 5, shape, generator=draw).to("cuda", BF16)
            for _ in range(self.world_size)
        ]

    def expect(self, found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        """RuntimeError unless two tensors are equal."""
        if not torch.equal(found, wanted):
            wrong = int((found != wanted).sum())
            raise RuntimeError(f"{what}: {wrong} of {wanted.numel()} elements are wrong")


def _specs(shape: tuple[int, ...]) -> tuple[dict[str, TensorShape], dict[str, TensorShape]]:
    return {"x": (shape, BF16)}, {"y": (shape, BF16)}


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).float().sum(0).to(BF16)


def memory(at: Rank) -> str:
    """Buffers appear zeroed on all ranks, are written by peers, and refused if sizes differ."""
    heap = at.heap()
    buffer = heap.allocate("one", 3 << 20)
    own = buffer.tensor((buffer.nbytes // 4,), torch.int32)
    if int(own.abs().sum()):
        raise RuntimeError("the buffer is not zero")
    heap.barrier()
    stream = Stream()
    for peer, address in enumerate(buffer.pointers):
        fill(address + 4096 * at.rank, 100 * at.rank + peer, 4096, stream)
    stream.synchronize(DEADLINE_S)
    heap.barrier()
    for peer in range(at.world_size):
        found = own[1024 * peer : 1024 * (peer + 1)].cpu()
        at.expect(found, torch.full_like(found, 100 * peer + at.rank), f"written by rank {peer}")
    heap.barrier()
    try:
        heap.allocate("two", (1 + at.rank % 2) << 21)
    except SymmetricError as error:
        refused = "different sizes" in str(error)
    else:
        refused = False
    if not refused:
        raise RuntimeError("buffers of different sizes were not refused")
    heap.allocate("three", 1).tensor((1,), torch.float32).fill_(1)
    torch.cuda.synchronize()
    heap.barrier()
    heap.close()
    return f"{at.world_size} ranks, {buffer.nbytes >> 20} MiB each, zeroed, written by every peer"


def kernel(at: Rank) -> str:
    """A shipped kernel through RankKernel: copied inputs, symmetric ones, padded rows."""
    heap = at.heap()
    for shape in (SMALL, ODD):
        made = RankKernel(at.libraries["all_reduce"], heap, *_specs(shape), timeout_s=WAIT_S)
        for seed in range(5):
            parts = at.inputs(seed, shape)
            found = made({"x": parts[at.rank]})["y"]
            made.synchronize(DEADLINE_S)
            at.expect(found, _total(parts), f"all-reduce {shape}, seed {seed}")
        parts = at.inputs(99, shape)
        made.tensors["x"].copy_(parts[at.rank])
        for _ in range(20):
            made({"x": made.tensors["x"]}, {"y": made.tensors["y"]})
        made.synchronize(DEADLINE_S)
        at.expect(made.tensors["y"], _total(parts), f"all-reduce {shape} without copies")
    heap.barrier()
    heap.close()
    return f"all-reduce {SMALL} and {ODD} equals torch's sum, {made.blocks} blocks"


def graph(at: Rank) -> str:
    """A captured call, replayed 100 times."""
    heap = at.heap()
    made = RankKernel(at.libraries["all_reduce"], heap, *_specs(SMALL), timeout_s=WAIT_S)
    x = torch.zeros(SMALL, dtype=BF16, device="cuda")
    made({"x": x})
    made.synchronize(DEADLINE_S)
    heap.barrier()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = made({"x": x})["y"]
    for turn in range(10):
        parts = at.inputs(turn, SMALL)
        x.copy_(parts[at.rank])
        for _ in range(10):
            captured.replay()
        made.synchronize(DEADLINE_S)
        at.expect(y, _total(parts), f"replay {10 * (turn + 1)}")
    heap.barrier()
    heap.close()
    return "100 replays, right with ten different inputs"


def compiled(at: Rank) -> str:
    """The kernel as an operator, under torch.compile and in a CUDA graph of it."""
    heap = at.heap()
    family = GroupKernel(
        *(at.libraries["all_reduce"], heap, Interface.from_json(INTERFACE)),
        name="allreduce",
        timeout_s=COMPILE_S,
    )
    call = operator(family)
    parts = at.inputs(3, SMALL)
    wanted = _total(parts) * 2 + 1
    at.expect(call(parts[at.rank] * 2) + 1, wanted, "the operator")
    layer: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
        lambda x: call(x * 2) + 1, fullgraph=True
    )
    at.expect(layer(parts[at.rank]), wanted, "the operator under torch.compile")
    heap.barrier()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = layer(parts[at.rank])
    captured.replay()
    torch.cuda.synchronize()
    at.expect(y, wanted, "torch.compile in a CUDA graph")
    heap.barrier()
    return f"{call} is right eagerly, compiled and captured"


def ipc(at: Rank) -> str:
    """A tensor of torch's own memory, seen by the next rank."""
    heap = at.heap()
    filler = torch.zeros(1000, device="cuda")  # so that the tensor does not start its allocation
    own = torch.arange(1000.0, device="cuda") + at.rank
    told = heap.agree("share", share(own).to_json())
    mapping = Mapping(at.device)
    peer = (at.rank + 1) % at.world_size
    seen = mapping.open(SharedTensor.from_json(told[peer]))
    at.expect(seen.cpu(), torch.arange(1000.0) + peer, f"rank {peer}'s tensor")
    heap.barrier()
    del seen
    mapping.close()
    heap.barrier()
    heap.close()
    return f"offset {told[peer]['offset']} in its allocation, {filler.numel()} elements before it"


def failure(at: Rank) -> str:
    """A kernel whose rank 1 forgets a signal: every rank ends in time and says what is missing."""
    heap = at.heap()
    made = RankKernel(*(at.libraries["dropped_signal"], heap, *_specs((64, 64))), timeout_s=1.0)
    begun = time.monotonic()
    made({"x": torch.zeros(64, 64, dtype=BF16, device="cuda")})
    try:
        made.synchronize(DEADLINE_S)
    except DeviceError as error:
        reports = error.reports
    else:
        raise RuntimeError("the kernel ended as if nothing were missing")
    wanted = f"waits for signal 'ready' slot 0: expected {at.world_size}, seen {at.world_size - 1}"
    if not any(wanted in report for report in reports):
        raise RuntimeError(f"no report says {wanted!r}: {reports}")
    return f"{reports[0]} (told after {time.monotonic() - begun:.1f} s)"


def distributed(at: Rank) -> str:
    """A bundle and the dispatcher under torch.distributed, beside NCCL."""
    dist.init_process_group(
        "nccl",
        init_method=f"file://{at.run / 'store'}",
        rank=at.rank,
        world_size=at.world_size,
        timeout=timedelta(seconds=START_S),
        device_id=torch.device("cuda", at.device),
    )
    parts = at.inputs(5, SMALL)
    folder = at.libraries["bundle"]
    hashes = json.loads((folder / "manifest.json").read_text())["hashes"]
    sources = {name: sha for name, sha in hashes.items() if name.startswith("source/")}
    bundle = TorchKernel(folder, sources)
    at.expect(bundle(x=parts[at.rank]), _total(parts), "the bundle")
    rows = {
        "all_reduce": [Row(None, "allreduce_two_shot")],
        "all_gather": [Row(None, "allgather")],
        "all_to_all": [Row(None, "alltoall")],
    }
    comm = Dispatcher(table=Table("for this check", rows), cache=folder / ".build" / "cache")
    x = parts[at.rank]
    at.expect(comm.all_reduce(x), _total(parts), "Dispatcher.all_reduce")
    at.expect(comm.all_gather(x), torch.stack(parts), "Dispatcher.all_gather")
    mine = torch.cat([part.chunk(at.world_size)[at.rank] for part in parts])
    at.expect(comm.all_to_all(x), mine, "Dispatcher.all_to_all")
    rows_of_sum = _total(parts).chunk(at.world_size)[at.rank]
    at.expect(comm.reduce_scatter(x), rows_of_sum, "Dispatcher.reduce_scatter")
    torch.cuda.synchronize()
    if comm.refused:
        raise RuntimeError(f"kernels refused shapes that they should take: {comm.refused}")
    text = comm.explain("all_reduce", x.nbytes)
    dist.destroy_process_group()
    return f"a bundle and four collectives are right; {text}"


CHECKS: dict[str, Callable[[Rank], str]] = {
    check.__name__: check for check in (memory, kernel, graph, compiled, ipc, failure, distributed)
}


def _prepared(start: Path) -> dict[str, Any]:
    """What the parent says once it is this check's turn."""
    deadline = time.monotonic() + START_S
    while not start.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the parent did not start this check")
        time.sleep(0.005)
    data: dict[str, Any] = json.loads(start.read_text())
    return data


def main(check: str, rank: int, world_size: int, device: int, start: Path) -> int:
    """Runs one check as one rank; what it found goes to standard output."""
    torch.cuda.set_device(device)
    driver(device)
    torch.zeros(1, device="cuda")
    told = _prepared(start)
    # Wherever it hangs, it says so and ends.
    faulthandler.dump_traceback_later(float(told["limit_s"]), exit=True)
    libraries = {name: Path(path) for name, path in told["libraries"].items()}
    try:
        detail = CHECKS[check](Rank(rank, world_size, device, Path(told["run"]), libraries))
        said = {"ok": True, "detail": detail}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        traceback.print_exc()
        said = {"ok": False, "detail": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(said) + "\n")
    sys.stdout.flush()
    return 0 if said["ok"] else 1


def _from(words: list[str]) -> int:
    check, rank, world_size, device, start = words
    return main(check, int(rank), int(world_size), int(device), Path(start))


if __name__ == "__main__":
    sys.exit(_from(sys.argv[1:]))
