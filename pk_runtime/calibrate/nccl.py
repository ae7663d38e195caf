"""NCCL's collectives by size, eager and in a CUDA graph: one process per GPU, unicast only."""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from pk_runtime.calibrate.probes import ProbeError
from pk_runtime.calibrate.transfers import Row

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Unicast only; and over the loopback interface, for nodes without a network.
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
}
SAMPLE_US = 4000.0
MAX_CALLS = 50
CALL_LIMIT_S = 60


def measure_nccl(world: int, sizes: tuple[int, ...], rounds: int, limit_s: float) -> list[Row]:
    """Every collective at every size. ProbeError if the processes fail or take over `limit_s`.

    The bytes are one rank's buffer for all_reduce and all_to_all, one rank's shard for all_gather
    (its input) and reduce_scatter (its output). Times are the maximum over ranks, median over
    `rounds` rounds of several calls in a row.
    """
    # house: environment, NCCL and torch are told nothing any other way
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        # house: processes, NCCL wants one process per GPU
        group = start_processes(  # type: ignore[no-untyped-call]
            _rank,
            args=(world, str(Path(folder) / "store"), sizes, rounds, str(result)),
            nprocs=world,
            join=False,
            start_method="spawn",
        )
        deadline = time.monotonic() + limit_s
        try:
            while not group.join(timeout=1.0):
                if time.monotonic() > deadline:
                    raise ProbeError(f"NCCL did not finish within {limit_s:g} s")
            rows: list[Row] = json.loads(result.read_text(encoding="utf-8"))
        except (ProcessRaisedException, ProcessExitedException) as error:
            raise ProbeError(f"NCCL: {str(error).strip().splitlines()[-1]}") from error
        finally:
            for process in group.processes:
                if process.is_alive():
                    process.kill()
                process.join(10.0)
    return rows


def bus_bytes(op: str, size: int, world: int) -> float:
    """Bytes that NCCL's bus bandwidth counts for one call, `size` as in `measure_nccl`."""
    share = (world - 1) / world
    return {
        "all_reduce": 2 * share * size,
        "all_to_all": share * size,
        "all_gather": share * size * world,
        "reduce_scatter": share * size * world,
    }[op]


def _rank(rank: int, world: int, store: str, sizes: tuple[int, ...], rounds: int, out: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=CALL_LIMIT_S),
        device_id=torch.device("cuda", rank),
    )
    rows: list[Row] = []
    for op in OPS:
        for size in sizes:
            call = _call(op, size, world)
            for mode, run, per_run in (("eager", call, 1), ("graph", *_graphed(call))):
                us = _time_us(run, rounds) / per_run
                bus = bus_bytes(op, size, world) / us / 1e3
                row = {"op": op, "mode": mode, "bytes": size, "us": round(us, 3)}
                rows.append({**row, "bus_gb_per_s": round(bus, 2)})
            del call
            torch.cuda.empty_cache()
    if rank == 0:
        Path(out).write_text(json.dumps(rows), encoding="utf-8")
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


def _call(op: str, size: int, world: int) -> Callable[[], object]:
    small, large = _buffer(size), _buffer(size * (1 if op.startswith("all_to") else world))
    if op == "all_reduce":
        return lambda: dist.all_reduce(small)
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(large, small)
    if op == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(large, small)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: scatter(small, large)


def _buffer(size: int) -> Tensor:
    """Random numbers; repeated sums overflow in time, which changes no time."""
    return torch.randn(size // 2, device="cuda").to(torch.bfloat16)


GRAPHED_CALLS = 10


def _graphed(call: Callable[[], object]) -> tuple[Callable[[], object], int]:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(GRAPHED_CALLS):
            call()
    return graph.replay, GRAPHED_CALLS


def _time_us(run: Callable[[], object], rounds: int) -> float:
    for _ in range(3):
        run()
    once = _maximum(_span_us(run, 1))
    calls = max(1, min(MAX_CALLS, round(SAMPLE_US / once)))
    return statistics.median(_maximum(_span_us(run, calls)) for _ in range(rounds)) / calls


def _span_us(run: Callable[[], object], calls: int) -> float:
    torch.cuda.synchronize()
    dist.barrier()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _maximum(us: float) -> float:
    value = torch.tensor(us, dtype=torch.float64, device="cuda")
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value.item())
