"""One rank of one pattern, or of cuBLAS + NCCL: checks it against torch and times it.

Started by `__main__`. Everything is compiled and checked before `turn` appears, so that timing has
the GPUs for itself. Prints one JSON object: by size, the error and the times in microseconds.
"""

import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pk_runtime import triton as pk

BASELINES = ("cublas_nccl", "cublas_nccl_unordered")
"""GEMM and all-gather by PyTorch: with C as it is wanted, and as W blocks one after another."""

PREPARE_S = 100 if pk.INTERPRETED else 30
TURN_S = 15
"""A process that takes longer to compile and check, or to be timed, says where it is and ends."""

WARM_UP, ITERATIONS = 5, 25
_DEADLINE_S = 120.0

Launch = Callable[[], None]


def main() -> None:
    """Reads the arguments, does the work, prints the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="a new one, for this pattern")
    parser.add_argument("--ready", type=Path, required=True, help="made when checked")
    parser.add_argument("--turn", type=Path, required=True, help="timing begins when it exists")
    given = parser.parse_args()
    # Ends the process whatever it does, also inside a call that never returns: a kernel that hangs
    # would share the GPU's time with those that are timed.
    faulthandler.dump_traceback_later(PREPARE_S, exit=True)
    heap_bytes = sum(2 * size * size for size in given.sizes) + (1 << 20)
    peers = pk.join(given.folder, given.rank, given.ranks, heap_bytes=heap_bytes, timeout_s=20)
    if given.name in BASELINES:
        _init_nccl(given.ready.parent / f"{given.name}.store", given.rank, given.ranks)
    cases = {size: prepare(peers, given.name, size) for size in given.sizes}
    result: dict[int, dict[str, Any]] = {
        # Twice: what a launch leaves behind must suit the next one.
        size: {"error": max(case.error(case.launch) for _ in range(2))}
        for size, case in cases.items()
    }
    faulthandler.cancel_dump_traceback_later()
    given.ready.touch()
    _await(given.turn)
    faulthandler.dump_traceback_later(TURN_S, exit=True)
    if peers.device.type == "cuda":
        for size, case in cases.items():
            result[size]["eager"] = measure(peers, case.launch)
            try:
                graph = graph_of(case.launch)
                result[size]["graph"] = measure(peers, graph.replay)
                result[size]["error"] = max(result[size]["error"], case.error(graph.replay))
            except RuntimeError as problem:
                result[size]["graph_failed"] = str(problem)
        peers.check()
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    # All ranks have met after their last launch. Graphs and NCCL take seconds to be taken down in
    # order, while the next pattern waits for its turn.
    os._exit(0)


@dataclass(frozen=True)
class Case:
    """A problem of one size: `launch` computes `c`, which should be `wanted` (fp32)."""

    peers: pk.Peers
    launch: Launch
    c: torch.Tensor
    wanted: torch.Tensor

    def error(self, launch: Launch) -> float:
        """The largest error of one more launch; the result's root mean square is about 1.

        Collective. Raises RuntimeError for a result that is no product of a and b.
        """
        self.c.fill_(float("nan"))
        launch()
        self.peers.check()
        error = (self.c.float() - self.wanted).abs().max().item()
        self.peers.agree("looked", 0)  # nobody begins the next launch before all have looked
        if not error < 0.1:  # not a number, too
            raise RuntimeError(f"rank {self.peers.rank}: the result is off by {error}")
        return error


def prepare(peers: pk.Peers, name: str, size: int) -> Case:
    """M = N = K = `size`, with operands that all ranks draw alike."""
    generator = torch.Generator(peers.device).manual_seed(size)
    both = torch.randn(
        (2, size, size), dtype=torch.bfloat16, device=peers.device, generator=generator
    )
    a, whole = both[0], both[1] / size**0.5
    columns = size // peers.world_size
    b = whole[:, peers.rank * columns :][:, :columns].contiguous()
    c = peers.empty((size, size), torch.bfloat16)
    if name in BASELINES:
        launch = baseline(peers, a, b, c, ordered=name == BASELINES[0])
    else:
        module = importlib.import_module(f"pk_runtime.triton.examples.{name}")
        launch = candidate(module.launch, peers, {"a": a, "b": b}, {"c": c})
    wanted = (a @ whole).float()
    if name == BASELINES[1]:
        blocks = c.view(peers.world_size, size, columns)
        wanted = wanted.view(size, peers.world_size, columns).transpose(0, 1)
        return Case(peers, launch, blocks, wanted)
    return Case(peers, launch, c, wanted)


def candidate(
    launch: Callable[..., None],
    peers: pk.Peers,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
) -> Launch:
    """The candidate's `launch` on these tensors."""
    return lambda: launch(peers, inputs, outputs)


def baseline(
    peers: pk.Peers, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, ordered: bool
) -> Launch:
    """cuBLAS, NCCL's all-gather, and if `ordered` the copy that puts the columns side by side."""
    rows, columns = a.shape[0], b.shape[1]
    own = torch.empty((rows, columns), dtype=c.dtype, device=c.device)
    blocks = c.view(peers.world_size, rows, columns)
    if ordered:
        blocks = torch.empty_like(blocks)

    def launch() -> None:
        torch.matmul(a, b, out=own)
        dist.all_gather_into_tensor(blocks.view(-1, columns), own)
        if ordered:
            c.view(rows, peers.world_size, columns).copy_(blocks.transpose(0, 1))

    return launch


def graph_of(launch: Launch) -> torch.cuda.CUDAGraph:
    """A CUDA graph of one launch."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph


def measure(peers: pk.Peers, launch: Launch) -> list[float]:
    """Microseconds of each launch on this rank, by events; all ranks begin each one together."""
    events = [
        [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for _ in range(WARM_UP + ITERATIONS)
    ]
    peers.agree("timing", 0)
    for start, end in events:
        peers.barrier()
        start.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return [1000 * start.elapsed_time(end) for start, end in events[WARM_UP:]]


def _init_nccl(store: Path, rank: int, ranks: int) -> None:
    backend = "nccl" if torch.cuda.is_available() and not pk.INTERPRETED else "gloo"
    device = torch.device("cuda", rank) if backend == "nccl" else None
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=ranks, device_id=device
    )


def _await(path: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear in {_DEADLINE_S} s: was the parent ended?")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
